"""The watch of the CUDA backend, as far as a CPU can show it."""

import pytest
import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime.capture.cuda import _Watch
from ostinato.runtime.capture.generators import GeneratorLog


class Seen(_Watch):
    def __init__(self):
        super().__init__(GeneratorLog(torch.device("cuda", 0)))
        self.names = []

    def execute(self, func, args, kwargs):
        self.names.append(func._schema.name)
        return super().execute(func, args, kwargs)


def test_what_the_user_compiled_runs_compiled_under_it():
    compiled_graphs = []

    def backend(module, example):
        compiled_graphs.append(module)
        return lambda x: (torch.full_like(x, 7.0),)  # so that one can tell compiled from plain

    block = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.ones(4)
    with torch.no_grad(), Seen() as watch:
        block(x)  # warm-up: compiles
        watch.is_active = True
        y = block(x)
        watch.is_active = False
    assert len(compiled_graphs) == 1, "nothing compiles again while a segment is recorded"
    assert y.tolist() == [7.0] * 4
    assert "aten::sin" not in watch.names


def test_it_notes_what_its_ops_produce_and_not_their_inputs():
    x = torch.ones(4)
    with torch.no_grad(), Seen() as watch:
        watch.is_active = True
        y, same = x + 1, x.view(2, 2)
        watch.is_active = False
    assert y.untyped_storage().data_ptr() in watch.produced
    assert same.untyped_storage().data_ptr() not in watch.produced


@pytest.mark.parametrize("op", [lambda x: x + 1, lambda x: torch.zeros(2, device="cpu")], ids=["op", "factory"])
def test_device_work_outside_of_the_capturing_stream_is_refused(monkeypatch, op):
    x = torch.ones(4)
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    with torch.no_grad(), Seen() as watch:
        watch._device_type = "cpu"  # a stand-in for the device
        watch.is_active = True
        op(x)
        capturing[0] = False
        with pytest.raises(UnjoinedStreamError, match="not forked") as raised:
            op(x)
        watch.is_active = False
        op(x)
    assert "test_cuda_watch.py" in raised.value.context["at"]


def test_host_work_may_run_under_any_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with torch.no_grad(), Seen() as watch:
        watch.is_active = True
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
