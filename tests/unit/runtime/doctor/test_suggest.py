"""The set of breaks: one function for many blockers, the small one among several, and functions of every kind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ostinato.runtime import GraphConfig, Graphed, diagnose, graph_break
from ostinato.runtime.doctor import Diagnosis

torch.manual_seed(0)
LINEAR = nn.Linear(8, 8)
X = torch.randn(4, 8)


def suggested(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[list[str], Diagnosis]:
    found = diagnose(fn, args or (X,), modes=("breakable",), **options)
    return [b.function.rpartition(".")[2] for b in found.suggested_breaks], found


def read(h: Tensor) -> Tensor:
    return h * (h.sum().item() > 0)


def read_twice(h: Tensor) -> Tensor:
    return read(LINEAR(read(h)))


def test_the_innermost_function_leaves_the_most_in_graphs() -> None:
    names, found = suggested(lambda x: LINEAR(read_twice(LINEAR(x))))
    assert names == ["read"]
    assert (found.modes["breakable"].num_segments, found.modes["breakable"].num_breaks) == (3, 2)


def test_two_blockers_in_one_function_need_one_break() -> None:
    def both(h: Tensor) -> Tensor:
        h.sum().item()
        return h + (h > 0).nonzero().sum()

    names, _ = suggested(lambda x: LINEAR(both(LINEAR(x))))
    assert names == ["both"]


def test_two_functions_get_two_breaks() -> None:
    def other(h: Tensor) -> Tensor:
        return h + (h > 0).nonzero().sum()

    names, found = suggested(lambda x: other(LINEAR(read(LINEAR(x)))))
    assert sorted(names) == ["other", "read"]
    assert found.modes["breakable"].num_breaks == 2


def test_fewer_ops_outside_of_graphs_come_before_fewer_functions() -> None:
    def other(h: Tensor) -> Tensor:
        return h + (h > 0).nonzero().sum()

    def outer(h: Tensor) -> Tensor:
        return other(LINEAR(LINEAR(read(h))))

    names, found = suggested(lambda x: LINEAR(outer(LINEAR(x))))
    assert sorted(names) == ["other", "read"]  # not outer, which would do alone
    assert (found.modes["breakable"].num_segments, found.modes["breakable"].num_breaks) == (3, 2)


def test_a_function_defined_in_the_call_with_its_cells_and_defaults() -> None:
    def model(x: Tensor) -> Tensor:
        offset = x.mean(1, keepdim=True)
        seen: list[float] = []

        def note(h: Tensor, /, scale: float = 2.0, *rest: Tensor, shift: float = 1.0, **more: Tensor) -> Tensor:
            seen.append(float(h.sum()))
            return h * scale + offset + shift

        return LINEAR(note(LINEAR(x)))

    names, found = suggested(model)
    assert names == ["note"]
    assert found.modes["breakable"].replay == "equal"


def test_a_method_that_calls_super() -> None:
    class Base(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + 1

    class Derived(Base):
        def forward(self, h: Tensor) -> Tensor:
            h.sum().item()
            return super().forward(h)

    module = Derived()
    names, found = suggested(lambda x: LINEAR(module(LINEAR(x))))
    assert names == ["forward"]
    assert found.modes["breakable"].works


def test_a_comprehension_is_no_candidate_but_its_function_is() -> None:
    def many(h: Tensor) -> Tensor:
        return h * sum([row.sum().item() > 0 for row in h])

    names, _ = suggested(lambda x: LINEAR(many(LINEAR(x))))
    assert names == ["many"]


def test_a_break_that_takes_in_nearly_all_comes_with_advice() -> None:
    def inner(x: Tensor) -> Tensor:
        h = LINEAR(LINEAR(LINEAR(x)))
        return h * (h.sum().item() > 0)

    names, found = suggested(lambda x: inner(x) + 1)
    assert names == ["inner"]
    assert any("outside of graphs" in line for line in found.advice)
    assert any(line.startswith("move line") for line in found.advice)


def test_the_suggestion_holds_when_it_is_followed() -> None:
    marked = graph_break(read)

    def model(x: Tensor, break_at: Callable[[Tensor], Tensor]) -> Tensor:
        return LINEAR(break_at(LINEAR(x)))

    _, found = suggested(lambda x: model(x, read))
    with Graphed(lambda x: model(x, marked), example=(X,), config=GraphConfig(mode="piecewise", sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        (plan,) = graphed.plans.values()
        outcome = found.modes["breakable"]
        assert (plan.num_segments, plan.num_nodes) == (outcome.num_segments, outcome.num_nodes)


def test_code_is_put_back_when_the_trial_fails() -> None:
    calls = [0]

    def fails_late(h: Tensor) -> Tensor:
        calls[0] += 1
        h.sum().item()
        if calls[0] > 5:  # after the probe, in the trials
            raise ValueError("late")
        return h

    before = fails_late.__code__
    found = diagnose(lambda x: LINEAR(fails_late(LINEAR(x))), (X,), modes=("full", "breakable"))
    assert fails_late.__code__ is before
    assert not found.modes["breakable"].works


@pytest.mark.parametrize("rows", [1, 3])
def test_odd_batches(rows: int) -> None:
    names, found = suggested(lambda x: LINEAR(read(LINEAR(x))), torch.randn(rows, 8))
    assert names == ["read"]
    assert bool(found.notes) == (rows == 1)  # one row has no halves


@pytest.mark.parametrize("modes", [(), ("piecewise",), ("full",)])
def test_modes_are_the_callers_choice(modes: tuple[str, ...]) -> None:
    found = diagnose(lambda x: LINEAR(read(LINEAR(x))), (X,), modes=modes)
    assert [b.function for b in found.suggested_breaks] == ["read"]
    assert tuple(found.modes) == modes


def test_functions_of_a_frozen_heap_are_found_and_stay_frozen() -> None:
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        names, _ = suggested(lambda x: LINEAR(read(LINEAR(x))))
        assert names == ["read"]
        assert gc.get_freeze_count() > 0
    finally:
        if not was_frozen:
            gc.unfreeze()


def read_or_not(h: Tensor, reads: bool = True) -> Tensor:
    if reads:
        h.sum().item()
    return h.sign()


def test_dynamo_traces_a_function_as_before_once_its_trial_is_over() -> None:
    found = diagnose(lambda x: LINEAR(read_or_not(LINEAR(x))), (X,), modes=("piecewise",))
    assert found.modes["piecewise"].works and found.modes["piecewise"].num_breaks == 1
    traced = torch.compile(lambda x: read_or_not(x, reads=False), backend="eager", fullgraph=True)
    assert torch.equal(traced(X), X.sign())
