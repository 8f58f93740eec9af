"""Kernels that no tracer can enter: one op in a segment, in every partition, and what must be declared."""

import ctypes
import functools
import subprocess
import sys

import pytest
import torch

from ostinato.errors import ConfigError, JitInCaptureError, UntraceableError
from ostinato.runtime import GraphConfig, Graphed, RuntimeMode, graph_break, jit_mark, opaque_op


def floats(tensor):
    """The numbers of a contiguous float tensor, as C sees them."""
    return (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())


@opaque_op(fake=lambda x: torch.empty_like(x))
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A kernel past the dispatcher: on raw memory."""
    out = torch.empty_like(x)
    source, target = floats(x), floats(out)
    for index in range(x.numel()):
        target[index] = source[index] * 2
    return out


@opaque_op(mutates=("out",))
def scale_into(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    source, target = floats(x), floats(out)
    for index in range(x.numel()):
        target[index] = source[index] * factor


@graph_break
def mix(h):
    return torch.cumsum(h, -1)


def program(x):
    out = torch.empty_like(x)
    scale_into(mix(doubled(x + 1)), out, 0.5)
    return doubled(out) + x


def by_torch(x):
    return mix((x + 1) * 2) * 0.5 * 2 + x


MODES = [("full", "breakable"), ("full", "fx"), ("piecewise", "breakable"), ("piecewise", "fx")]


@pytest.mark.parametrize(("mode", "partition"), MODES)
def test_it_stays_inside_a_segment_and_is_replayed(ready, mode, partition):
    graphed = ready(program, torch.ones(8, 2), mode=mode, partition=partition, sizes=(1, 4, 8))
    for plan in graphed.plans.values():
        is_piecewise = plan.key.runtime_mode is RuntimeMode.PIECEWISE
        assert (plan.num_segments, len(plan.breaks)) == ((2, 1) if is_piecewise else (1, 0))
        names = [name for entry in plan.entries if hasattr(entry, "nodes") for name in entry.nodes()]
        assert sum(name.startswith("ostinato_ops::") for name in names) == 3
    for rows in (1, 3, 4, 8):
        x = torch.randn(rows, 2)
        assert torch.equal(graphed(x), by_torch(x))


def test_outside_of_graphs_it_is_a_call():
    x = torch.arange(4.0).view(2, 2)
    assert torch.equal(doubled(x), x * 2)
    out = torch.zeros(2, 2)
    assert scale_into(x, out, 3.0) is None
    assert torch.equal(out, x * 3)


def test_without_the_wrapper_a_simulated_graph_misses_it(ready):
    """The control: what the wrapper is there for."""

    def bare(x):
        h = x + 1
        out = torch.zeros_like(h)
        source, target = floats(h), floats(out)
        for index in range(h.numel()):
            target[index] = source[index] * 2
        return out + 0

    graphed = ready(bare, torch.ones(4, 2), sizes=(4,))
    assert not torch.equal(graphed(torch.ones(4, 2)), bare(torch.ones(4, 2)))
    with pytest.raises(UntraceableError):
        ready(bare, torch.ones(4, 2), sizes=(4,), mode="piecewise", partition="fx")


def test_a_tracer_needs_to_know_what_it_returns(ready):
    @opaque_op
    def undeclared(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def fn(x):
        return undeclared(x) + 1

    assert ready(fn, torch.ones(4, 2), sizes=(4,), mode="piecewise")(torch.ones(4, 2)).eq(3).all()
    with pytest.raises(UntraceableError, match="has no fake"):
        ready(fn, torch.ones(4, 2), sizes=(4,), mode="piecewise", partition="fx")


def test_what_it_writes_counts_as_written():
    out = torch.zeros(2, 2)
    before = out._version
    scale_into(torch.ones(2, 2), out=out, factor=2.0)
    assert out._version == before + 1
    with torch.inference_mode():
        scale_into(torch.ones(2, 2), torch.zeros(2, 2), 2.0)  # such tensors count nothing


def test_it_may_not_return_what_it_was_given():
    @opaque_op
    def same(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)

    with pytest.raises(ConfigError, match="returns memory of an argument"):
        same(torch.ones(2, 2))


def test_what_is_left_out_and_lists_are_written_too():
    @opaque_op(mutates=("out",))
    def maybe(x: torch.Tensor, out: torch.Tensor | None = None) -> None:
        if out is not None:
            out.copy_(x)

    @opaque_op(mutates=("outs",))
    def all_of(x: torch.Tensor, outs: list[torch.Tensor]) -> None:
        for out in outs:
            out.copy_(x)

    x, outs = torch.ones(2), [torch.zeros(2), torch.zeros(2)]
    maybe(x)
    maybe(x, outs[0])
    all_of(x, outs)
    assert [out._version for out in outs] == [4, 2]  # copy_ counts, too
    assert all(out.eq(1).all() for out in outs)


def test_a_first_call_does_not_bring_in_the_compiler():
    """Seconds of every start that compiles nothing."""
    code = (
        "import sys, torch\nfrom ostinato.runtime import opaque_op\n"
        "def fn(x: torch.Tensor, out: torch.Tensor) -> None:\n    out.copy_(x)\n"
        "opaque_op(mutates=('out',))(fn)(torch.ones(2), torch.zeros(2))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_jit_that_happens_in_a_capture_is_refused_in_it_too():
    """Unlike a break it must obey the rules of capture."""
    calls = []

    @opaque_op(fake=lambda x: torch.empty_like(x))
    def specialising(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        jit_mark(f"test_opaque.kernel.{len(calls)}")
        return x * 2

    for partition in ("breakable", "fx"):
        config = GraphConfig(mode="piecewise", partition=partition, sizes=(4,))
        with Graphed(lambda x: specialising(x) + 1, example=(torch.ones(4, 2),), config=config) as graphed:
            graphed.warm_up()
            with pytest.raises(JitInCaptureError) as caught:
                graphed.capture()
            assert caught.value.context["at"].startswith(__file__), "whoever launches the kernel"


# --- what must be declared --------------------------------------------------------------------------


def no_annotation(x):
    return x * 2


def no_result(x: torch.Tensor):
    return x * 2


def odd_argument(x: torch.Tensor, options: dict) -> torch.Tensor:
    return x * 2


def odd_result(x: torch.Tensor) -> dict:
    return {"x": x * 2}


@pytest.mark.parametrize("fn", [no_annotation, no_result, odd_argument, odd_result])
def test_annotations_are_needed(fn):
    with pytest.raises(ConfigError, match=f"{fn.__name__} cannot be an opaque op") as caught:
        opaque_op(fn)
    assert "annotate every parameter" in caught.value.fix


@pytest.mark.parametrize("mutates", [("nothing",), ("n",)])
def test_mutates_names_tensor_parameters(mutates):
    def fn(x: torch.Tensor, n: int) -> None:
        x.add_(n)

    with pytest.raises(ConfigError, match="cannot be an opaque op"):
        opaque_op(mutates=mutates)(fn)


def test_names(monkeypatch):
    def fn(x: torch.Tensor) -> None:
        """Nothing."""

    assert "my_kernel" in str(opaque_op(name="my_kernel")(fn))
    again = opaque_op(name="my_kernel")(fn)  # a module that is loaded twice
    assert "my_kernel_" in str(again)
    assert "class_" in str(opaque_op(name="class")(fn)), "no attribute could be called so"
    for name in ("a b", "1a", "a.b", "ns::b", "", "_private", 3):
        with pytest.raises(ConfigError, match="no name for an op"):
            opaque_op(name=name)(fn)
    for odd in (3, int, functools.partial(fn)):
        with pytest.raises(ConfigError, match="cannot be an opaque op"):
            opaque_op(odd)
    first, second = opaque_op(fn), opaque_op(fn)
    assert str(first) != str(second), "one name an op"
