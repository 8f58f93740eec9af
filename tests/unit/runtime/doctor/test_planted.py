"""Planted blockers: each is found on its line with its reason, and the break around it is suggested and works.

The same table runs on a GPU (`make test-gpu`): verdicts do not depend on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ostinato.runtime import graph_break, jit_mark
from ostinato.runtime.doctor import Diagnosis, diagnose

SYNC, DYNAMIC = "host sync", "data-dependent shape"
HOST_INTEGER, PLANNING = "host integer that depends on the batch", "host-side planning"

torch.manual_seed(0)
LINEAR = nn.Linear(8, 8)
X = torch.randn(4, 8)
LENS = torch.tensor([3, 5, 2, 7])


# --- the culprits: each takes and returns [rows, 8], and has one line that ends in a mark -------------------


def item(h: Tensor, lens: Tensor) -> Tensor:
    return h * (h.sum().item() > 0)  # CULPRIT


def tolist(h: Tensor, lens: Tensor) -> Tensor:
    lens.tolist()  # CULPRIT
    return h


def printing(h: Tensor, lens: Tensor) -> Tensor:
    print(h)  # CULPRIT
    return h


def nonzero(h: Tensor, lens: Tensor) -> Tensor:
    rows = (lens > 2).nonzero()  # CULPRIT
    return h + rows.sum()


def boolean_index(h: Tensor, lens: Tensor) -> Tensor:
    picked = h[lens > 2]  # CULPRIT
    return h + picked.sum()


def unique(h: Tensor, lens: Tensor) -> Tensor:
    values = torch.unique(lens)  # CULPRIT
    return h + values.sum()


def to_cpu(h: Tensor, lens: Tensor) -> Tensor:
    host = lens.cpu()  # CULPRIT
    return h + host.sum().to(h.device)


def branch(h: Tensor, lens: Tensor) -> Tensor:
    if h.sum() > 0:  # CULPRIT
        return h
    return -h


def equal(h: Tensor, lens: Tensor) -> Tensor:
    torch.equal(h, h)  # CULPRIT
    return h


def list_building(h: Tensor, lens: Tensor) -> Tensor:
    return h * sum([int(n) > 2 for n in lens])  # CULPRIT


def host_length(h: Tensor, lens: Tensor) -> Tensor:
    longest = lens.max().item()  # CULPRIT
    mask = torch.arange(longest, device=h.device) < lens[:, None]
    return h * mask.sum(1, keepdim=True)


def closed_over(weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    def closure(h: Tensor, lens: Tensor, *, bias: float = 1.0) -> Tensor:
        return h * weight + (h.sum().item() > bias)  # CULPRIT

    return closure


class Method(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, h: Tensor, lens: Tensor) -> Tensor:
        self.inner(h).sum().item()  # CULPRIT
        return h


CLOSURE, METHOD = closed_over(2.0), Method()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PLANTED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "item": (item, SYNC),
    "tolist": (tolist, SYNC),
    "print": (printing, SYNC),
    "nonzero": (nonzero, DYNAMIC),
    "boolean index": (boolean_index, DYNAMIC),
    "unique": (unique, DYNAMIC),
    "cpu": (to_cpu, SYNC),
    "branch on a tensor": (branch, SYNC),
    "torch.equal": (equal, SYNC),
    "list from a tensor": (list_building, SYNC),
    "host length as a shape": (host_length, SYNC),
    "closure": (CLOSURE, SYNC),
    "method of a module": (METHOD, SYNC),
}


def culprit_line(function: Callable[..., Any]) -> int:
    """The line that the marked comment stands on."""
    target = function.forward if isinstance(function, nn.Module) else function
    lines, first = inspect.getsourcelines(target)
    return first + next(i for i, line in enumerate(lines) if "# CULPRIT" in line)


def planted(function: Callable[..., Any], device: str = "cpu", **options: Any) -> Diagnosis:
    """Diagnose the culprit between two linear layers."""
    linear = LINEAR.to(device)
    if isinstance(function, nn.Module):
        function.to(device)

    def model(x: Tensor, lens: Tensor) -> Tensor:
        return linear(function(torch.relu(linear(x)), lens))

    return diagnose(model, (X.to(device), LENS.to(device)), **{"modes": ("full", "breakable"), **options})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_blocker_is_found_and_mended(name: str, device: str) -> None:
    function, reason = PLANTED[name]
    found = planted(function, device)
    line = culprit_line(function)
    at_line = [op for op in found.blockers if op.line == line and op.file == __file__]
    assert reason in {op.reason for op in at_line}
    assert all(op.fix and op.count >= 1 and 0 <= op.share <= 1 for op in at_line)
    assert found.is_blocked and found.verdict.value == "unfriendly"
    assert not found.modes["full"].works
    code = (function.forward if isinstance(function, nn.Module) else function).__code__
    assert [(b.file, b.line) for b in found.suggested_breaks] == [(__file__, code.co_firstlineno)]
    outcome = found.modes["breakable"]
    assert (outcome.works, outcome.num_segments, outcome.num_breaks) == (True, 2, 1), outcome
    assert outcome.with_suggested_breaks and outcome.replay == "equal"


def test_trying_a_break_leaves_the_code_as_it_was() -> None:
    before = item.__code__, Method.forward.__code__, CLOSURE.__code__
    for function in (item, METHOD, CLOSURE):
        planted(function)
    assert (item.__code__, Method.forward.__code__, CLOSURE.__code__) == before


def test_nothing_is_found_where_nothing_is() -> None:
    found = planted(lambda h, lens: h + lens[:, None], modes=("full", "piecewise", "breakable"))
    assert not found.blockers and found.verdict.value == "friendly"
    assert not found.suggested_breaks and not found.advice and not found.notes
    assert {name: (o.works, o.num_segments, o.replay) for name, o in found.modes.items()} == {
        "full": (True, 1, "equal"),
        "piecewise": (True, 1, "equal"),
        "breakable": (True, 1, "equal"),
    }
    assert abs(sum(op.share for op in found.ops) - 1) < 1e-6


def test_a_marked_function_blocks_nothing() -> None:
    found = planted(graph_break(nonzero))
    assert not found.is_blocked and not found.suggested_breaks
    inside = [op for op in found.ops if op.line == culprit_line(nonzero)]
    assert {op.reason for op in inside} == {"runs eagerly in break nonzero"}
    assert not found.modes["full"].works  # a full graph would have to hold it
    assert found.modes["breakable"].works and found.modes["breakable"].num_segments == 2


def test_fx_takes_the_suggested_break_too() -> None:
    found = planted(item, modes=("piecewise", "breakable"))
    assert found.modes["piecewise"].works
    assert (found.modes["piecewise"].num_segments, found.modes["piecewise"].num_breaks) == (2, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{"partition": "inductor"}, {"compiler": "inductor"}])
def test_compiled_trials_take_the_suggested_break_too(how: dict[str, str]) -> None:
    outcome = planted(item, "cuda", modes=("piecewise",), **how).modes["piecewise"]
    assert (outcome.works, outcome.num_segments, outcome.num_breaks) == (True, 2, 1), outcome
    assert planted(scratch, "cuda", modes=("full",), **how).modes["full"].works


# --- conditions: they block nothing, and are said ------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, h: Tensor, lens: Tensor) -> Tensor:
        self.seen += 1  # CULPRIT
        return h


def dropout(h: Tensor, lens: Tensor) -> Tensor:
    return torch.nn.functional.dropout(h, 0.5, training=True)  # CULPRIT


def rand(h: Tensor, lens: Tensor) -> Tensor:
    return h + torch.rand(8, device=h.device)  # CULPRIT


def first_jit(h: Tensor, lens: Tensor) -> Tensor:
    jit_mark("doctor test kernel")  # CULPRIT
    return h


def attention(h: Tensor, lens: Tensor) -> Tensor:
    q = h.view(1, 1, *h.shape)
    return nn.functional.scaled_dot_product_attention(q, q, q).view_as(h)  # CULPRIT


def scratch(h: Tensor, lens: Tensor) -> Tensor:
    out = torch.empty_like(h)
    out.copy_(h)  # written, but made in the call: no live state
    return out.add_(1)


def resized(h: Tensor, lens: Tensor) -> Tensor:
    out = torch.empty(2 * len(h), 8, device=h.device)
    out.resize_(h.shape)  # CULPRIT
    return out.copy_(h)


def moved(h: Tensor, lens: Tensor) -> Tensor:
    out = torch.empty_like(h)
    out.set_(h)  # CULPRIT
    return out


def summed_over_ranks(h: Tensor, lens: Tensor) -> Tensor:
    torch.distributed.all_reduce(h)  # CULPRIT
    return h


class Keeper:
    def __call__(self, h: Tensor, lens: Tensor) -> Tensor:
        self.last = h * 2  # CULPRIT
        return h


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Counter(), "in-place write to live state"),
        (dropout, "random state"),
        (rand, "random state"),
        (first_jit, "first-time JIT or autotune"),
        (attention, "mixes rows of the batch"),
        (resized, "allocation outside the pool"),
        (moved, "allocation outside the pool"),
    ],
    ids=["buffer counter", "dropout", "rand", "jit_mark", "SDPA", "resize_", "set_"],
)
def test_a_condition_is_reported_and_does_not_block(function: Callable[..., Any], reason: str, device: str) -> None:
    assert_condition(planted(function, device), function, reason)


@pytest.fixture
def one_rank(device: str) -> Iterator[None]:
    """A process group of this process alone."""
    dist = torch.distributed
    if not (dist.is_available() and (dist.is_gloo_available() if device == "cpu" else dist.is_nccl_available())):
        pytest.skip("this torch has no collectives for the device")
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("device", DEVICES)
def test_a_collective_is_reported_and_does_not_block(device: str, one_rank: None) -> None:
    assert_condition(planted(summed_over_ranks, device), summed_over_ranks, "collective")


def assert_condition(found: Diagnosis, function: Callable[..., Any], reason: str) -> None:
    """The culprit's line has this condition, nothing else has any, and one graph holds it."""
    said = [op for op in found.ops if op.verdict.value == "conditional"]
    assert {(op.reason, op.line) for op in said} == {(reason, culprit_line(function))}
    assert all(op.fix for op in said)
    assert not found.is_blocked and found.verdict.value == "conditional"
    assert found.modes["full"].works and found.modes["full"].num_segments == 1


def test_memory_made_in_the_call_may_be_written() -> None:
    assert planted(scratch).verdict.value == "friendly"


def test_a_tensor_that_is_kept_is_reported() -> None:
    found = planted(Keeper())
    assert {op.reason for op in found.ops if op.verdict.value == "conditional"} == {"tensor kept from call to call"}


def test_writing_an_argument_is_live_state_and_leaves_the_callers_tensor_alone() -> None:
    x = X.clone()
    found = diagnose(lambda x: x.add_(1), (x,), modes=())
    assert {op.reason for op in found.ops if op.op == "aten::add_"} == {"in-place write to live state"}
    assert torch.equal(x, X)


# --- what only several runs show ---------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_python_counter_is_a_host_integer(device: str) -> None:
    calls = [0]

    def count(h: Tensor, lens: Tensor) -> Tensor:
        calls[0] += 1
        return h * calls[0]  # CULPRIT

    found = planted(count, device)
    at_line = [op for op in found.blockers if op.line == culprit_line(count)]
    assert {(op.op, op.reason) for op in at_line} == {("aten::mul", HOST_INTEGER)}
    assert found.modes["full"].is_captured and not found.modes["full"].works  # nothing refuses it: a silent fault
    assert found.modes["breakable"].works
    assert [b.function.rpartition(".")[2] for b in found.suggested_breaks] == ["count"]


def test_a_longest_length_used_elsewhere_than_it_is_made_needs_one_function() -> None:
    def longest(lens: Tensor) -> int:
        return int(lens.max())

    def model(x: Tensor, lens: Tensor) -> Tensor:
        n = longest(lens)
        return LINEAR(x) + torch.zeros(n).sum()  # CULPRIT

    found = diagnose(model, (X, LENS), modes=("full", "breakable"))
    assert {op.reason for op in found.blockers if op.line == culprit_line(model)} == {HOST_INTEGER}
    assert not found.modes["breakable"].works
    assert any(f"line {culprit_line(model)} of {__file__}" in line for line in found.advice)


def test_a_branch_on_host_data_is_control_flow() -> None:
    def model(x: Tensor, lens: Tensor) -> Tensor:
        is_long = graph_break(lambda n: bool(n.max() > 5))(lens)
        if is_long:
            return LINEAR(x)
        return LINEAR(x) + 1

    found = diagnose(model, (X, LENS), modes=("breakable",))
    assert PLANNING in {op.reason for op in found.blockers}


def test_a_blocker_in_the_root_gets_advice_instead_of_a_break() -> None:
    def root(x: Tensor) -> Tensor:
        h = LINEAR(x)
        return h / h.max().item()  # CULPRIT

    found = diagnose(root, (X,), modes=("full", "breakable"))
    assert not found.suggested_breaks
    assert any(
        f"move line {culprit_line(root)} of {__file__}" in line and "@graph_break" in line for line in found.advice
    )


def test_a_kernel_that_compiles_in_every_call_blocks() -> None:
    calls = [0]

    def always_new(h: Tensor, lens: Tensor) -> Tensor:
        calls[0] += 1
        jit_mark(f"doctor test kernel {calls[0]}")
        return h

    found = planted(always_new)
    assert {(op.op, op.reason) for op in found.blockers} == {("jit_mark", "first-time JIT or autotune")}
    assert (found.modes["full"].error or {}).get("code") == "OST204"
