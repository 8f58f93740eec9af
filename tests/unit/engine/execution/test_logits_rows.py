"""Only rows that are sampled from reach the output projection, but for what a full graph holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato.engine.execution import Executor

if TYPE_CHECKING:
    from .conftest import ExecutorMaker


class Spy:
    """Counts rows that `compute_logits` is given."""

    def __init__(self, executor: Executor, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self._compute = executor._model.compute_logits
        patch.setattr(executor._model, "compute_logits", self)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows.append(hidden.shape[0])
        return self._compute(hidden)


@pytest.mark.parametrize("mode", ["none", "piecewise", "full_and_piecewise"])
@pytest.mark.parametrize(
    ("parts", "partial", "sampled"),
    [
        ([(0, 20)], 0, 1),
        ([(0, 20)], 1, 0),
        ([(0, 8), (0, 7), (0, 3)], 0, 3),
        ([(30, 1), (12, 1), (0, 13)], 1, 2),
    ],
)
def test_prefill(
    shared_executor: ExecutorMaker,
    helpers: Any,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    parts: list[tuple[int, int]],
    partial: int,
    sampled: int,
) -> None:
    executor = shared_executor(mode=mode)
    spy = Spy(executor, monkeypatch)
    logits = executor.execute(helpers.BatchMaker(executor)(parts, partial=partial)).logits
    assert spy.rows == [sampled]
    assert logits.shape == (sampled, 272)


def test_a_full_graph_calls_nothing(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = shared_executor(mode="full_and_piecewise")
    spy = Spy(executor, monkeypatch)
    assert executor.execute(helpers.BatchMaker(executor)([(9, 1)] * 3, is_decode=True)).logits.shape == (3, 272)
    assert spy.rows == []


@pytest.mark.parametrize(("mode", "always"), [("none", False), ("piecewise", False), ("full", True)])
def test_the_rows_are_each_requests_last(shared_executor: ExecutorMaker, helpers: Any, mode: str, always: bool) -> None:
    """Each request's logits are those that it gets alone, whoever stands beside it."""
    executor = shared_executor(mode=mode, always=always)
    batch = helpers.BatchMaker(executor)([(30, 1), (12, 6), (8, 3), (0, 5)], partial=1)
    caches = [flat.clone() for flat in helpers.flat_caches(executor)]
    together = executor.execute(batch).logits.clone()
    assert together.shape == (3, 272)
    for row, item in enumerate(batch.items[:3]):
        for flat, old in zip(helpers.flat_caches(executor), caches, strict=True):
            flat.copy_(old)
        alone = executor.execute(type(batch)((item,))).logits
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-4)
