"""The watch of the CUDA backend, as far as a CPU can show it."""

import torch

from ostinato.runtime.capture.cuda import _Watch


class Seen(_Watch):
    def __init__(self):
        super().__init__()
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
