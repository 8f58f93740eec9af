"""What the simulated backend adds to the conformance suite: exact memory semantics of a recording."""

import ctypes
import math
import sys

import pytest
import torch

from ostinato.errors import CaptureError, NestedCaptureError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.capture import simulated
from ostinato.runtime.capture.simulated import SimulatedBackend


def record(backend, fn):
    with backend.phase(), backend.session():
        backend.begin()
        out = fn()
        return backend.end(), out


def test_it_is_for_the_cpu():
    with pytest.raises(CaptureError, match="runs on the CPU, not on cuda"):
        SimulatedBackend("cuda")


def test_a_dropped_output_is_recycled_by_the_next_capture(backend):
    x = torch.ones(256)
    first, y = record(backend, lambda: x * 3)
    address = y.data_ptr()
    del y
    second, z = record(backend, lambda: x * 5)
    assert z.data_ptr() == address
    first.replay()
    assert z[0].item() == 3.0, "the first graph writes where it was captured, as on a device"
    second.replay()
    assert z[0].item() == 5.0


def test_intermediates_are_poison_after_the_session(backend):
    x = torch.ones(4)
    addresses = []

    def program():
        hidden = x + 1
        addresses.append(hidden.data_ptr())
        return hidden * 2

    graph, y = record(backend, program)
    assert math.isnan(ctypes.c_float.from_address(addresses[0]).value), "a stale reader would see it"
    graph.replay()
    assert y.tolist() == [4.0] * 4


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.stack([x, x + 1]).unbind(0),
        lambda x: torch.sort(x * -1),
        lambda x: torch.chunk(x.view(2, 4) @ torch.ones(4, 4), 2),
        lambda x: x.add(1).mul_(2).clamp_(max=5),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: torch.where(x > 2, x, torch.zeros_like(x)),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2)).conj().resolve_conj()),
        lambda x: torch.nn.functional.layer_norm(x, (8,)),
        lambda x: x[torch.tensor([1, 1, 0])],
        lambda x: torch.zeros(8).index_add_(0, torch.arange(8), x),
        lambda x: torch.cat([x, x]).to(torch.float64),
        lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 2, 4)] * 3),
    ],
)
def test_replay_is_bitwise_eager(backend, fn):
    x = torch.randn(8)
    graph, out = record(backend, lambda: fn(x))
    x.copy_(torch.randn(8))
    graph.replay()
    expected = fn(x)
    pairs = zip(out, expected, strict=True) if isinstance(out, tuple) else [(out, expected)]
    assert all(torch.equal(got, want) for got, want in pairs)


def test_host_constants_outlive_their_owner(backend):
    x = torch.zeros(2)
    graph, y = record(backend, lambda: x + torch.tensor([1.0, 2.0]))
    graph.replay()
    assert y.tolist() == [1.0, 2.0]


def test_an_error_drops_the_segment_and_its_memory(backend):
    x = torch.ones(4)
    with pytest.raises(ZeroDivisionError):
        record(backend, lambda: (x + 1, 1 // 0))
    assert not backend.is_capturing()
    assert backend.memory().num_graphs == 0
    graph, y = record(backend, lambda: x + 1)
    assert (graph.num_nodes, y.tolist()) == (1, [2.0] * 4)


def test_the_last_graph_takes_the_pool_with_it(backend):
    x = torch.ones(400)
    graphs = [record(backend, lambda: (x + 1) * 2)[0] for _ in range(2)]
    held = backend.memory().reserved_bytes
    graphs[0].close()
    assert backend.memory().reserved_bytes == held > 0, "later captures reuse it"
    graphs[1].close()
    assert backend.memory().reserved_bytes == 0


def test_a_mode_that_user_code_pushes_does_not_hide_ops(backend):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x = torch.ones(4)

    def program():
        with Passes():
            return x + 1

    graph, y = record(backend, program)
    x.fill_(9.0)
    graph.replay()
    assert y.tolist() == [10.0] * 4


def test_steps_are_the_replay_taken_apart(backend):
    x, total = torch.full((4,), 2.0), torch.zeros(4)

    def fn():
        y = x.view(2, 2) * 3
        total.add_(y.view(4))
        return y.exp()

    graph, out = record(backend, fn)
    total.zero_()
    x.fill_(1.0)
    steps = graph.steps()
    assert [step.op for step in steps] == graph.nodes() == ["aten::mul", "aten::add_", "aten::exp"]
    seen = []
    for step in steps:
        step.run()
        seen.append([t.flatten()[0].item() for t in step.written])
    assert seen == [[3.0], [3.0], [pytest.approx(math.exp(3))]]
    assert out[0, 0].item() == pytest.approx(math.exp(3)) and total[0].item() == 3.0


def test_what_a_recording_has_frozen(backend):
    x = torch.ones(4, 2)
    graph, _ = record(backend, lambda: x[1:3].mul(5) + torch.tensor([7.0, 8.0]))
    calls = {call.op: dict(call.values) for call in graph.baked()}
    assert calls["aten::slice"]["start"] == 1 and calls["aten::slice"]["end"] == 3
    assert calls["aten::mul"]["layout of self"] == ((2, 2), (2, 1), 2)
    assert calls["aten::mul"]["other"] == 5
    assert any(call.values == (("data", [7.0, 8.0]),) for call in graph.baked())
    graph.close()
    assert graph.baked() == []


def test_a_segment_of_another_backend_is_no_place_to_begin_one(backend):
    other = SimulatedBackend()
    with other.phase(), other.session(), backend.phase(), backend.session():
        backend.begin()
        with pytest.raises(NestedCaptureError):
            other.begin()
        backend.abort()
        other.begin()
        other.abort()


def test_what_fails_at_the_beginning_of_a_segment_leaves_nothing_open(backend, monkeypatch):
    def failing(device):
        raise ZeroDivisionError

    finders = list(sys.meta_path)
    with monkeypatch.context() as patch, backend.phase():
        patch.setattr(simulated, "refusing_calls", failing)
        with pytest.raises(ZeroDivisionError), backend.session():
            backend.begin()
        assert not is_recording() and sys.meta_path == finders
    assert record(backend, lambda: torch.ones(2) + 1)[0].num_nodes
