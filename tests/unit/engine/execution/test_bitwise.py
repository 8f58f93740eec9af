"""A replayed step is, bit for bit, the eager run of `Executor.forward` at the same padded shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato.engine.execution import Executor
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.runtime import GraphKey, Reason, RuntimeMode
from ostinato.testing.tiny_models import TINY_FAMILIES

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

DECODE_SIZES = [(1, 1), (3, 4), (4, 4), (5, 6), (6, 6)]  # live requests -> bucket
TOKEN_SIZES = [(1, 8), (7, 8), (8, 8), (9, 16), (15, 16), (16, 16), (17, 24), (23, 24), (24, 24)]


def check(executor: Executor, batch: ScheduledBatch, mode: RuntimeMode, bucket: int, helpers: Any) -> GraphKey:
    """Replay ``batch``, run it eagerly from the same state, and compare outputs, logits and caches."""
    decision = helpers.decision_for(executor, batch)
    key = decision.key
    assert key is not None and key.runtime_mode is mode and key.num_tokens == bucket
    is_exact = bucket == batch.num_tokens and key.num_reqs in (None, batch.num_reqs)
    assert decision.reason is (Reason.EXACT if is_exact else Reason.PADDED)
    before = [flat.clone() for flat in helpers.flat_caches(executor)]
    steps_before = executor.graphed.counters.by_runtime_mode[mode.value]

    logits = executor.execute(batch).logits.clone()
    assert executor.graphed.counters.by_runtime_mode[mode.value] == steps_before + 1
    replayed = executor.graphed.plans[key].outputs.clone()
    caches = [flat.clone() for flat in helpers.flat_caches(executor)]

    for flat, old in zip(helpers.flat_caches(executor), before, strict=True):
        flat.copy_(old)
    eager = helpers.eager_forward(executor, batch, decision)
    rows = [index for index, item in enumerate(batch.items) if item.samples]
    if mode is RuntimeMode.PIECEWISE:
        ends = torch.tensor([item.num_new_tokens for item in batch.items]).cumsum(0) - 1
        with torch.inference_mode():
            expected = executor._model.compute_logits(eager[ends[rows]])
    else:
        expected = eager[rows]

    assert replayed.shape == eager.shape
    assert torch.equal(helpers.bits(replayed), helpers.bits(eager))
    assert logits.shape == (len(rows), 272)
    assert torch.equal(helpers.bits(logits), helpers.bits(expected))
    assert logits.isfinite().all()
    assert not helpers.changed_slots(caches, helpers.flat_caches(executor))
    return key


@pytest.fixture(params=TINY_FAMILIES)
def executor(request: pytest.FixtureRequest, shared_executor: ExecutorMaker) -> Executor:
    return shared_executor(request.param, mode="full_and_piecewise")


def test_full_decode_at_bucket_edges(executor: Executor, helpers: Any) -> None:
    make = helpers.BatchMaker(executor)
    for num_reqs, bucket in DECODE_SIZES:
        batch = make([(7 * n + 1, 1) for n in range(num_reqs)], is_decode=True)
        assert check(executor, batch, RuntimeMode.FULL, bucket, helpers).kv_tier == 256


def test_full_decode_at_the_edges_of_kv_tiers(executor: Executor, helpers: Any) -> None:
    make = helpers.BatchMaker(executor)
    for context, tier in [(255, 256), (256, 300), (298, 300)]:  # tokens before the step
        key = check(executor, make([(context, 1), (3, 1)], is_decode=True), RuntimeMode.FULL, 4, helpers)
        assert key.kv_tier == tier


def test_piecewise_prefill_at_bucket_edges(executor: Executor, helpers: Any) -> None:
    make = helpers.BatchMaker(executor)
    for num_tokens, bucket in TOKEN_SIZES:
        check(executor, make([(0, num_tokens)]), RuntimeMode.PIECEWISE, bucket, helpers)


def test_piecewise_mixed_batches(executor: Executor, helpers: Any) -> None:
    make = helpers.BatchMaker(executor)
    for parts, bucket, partial in [
        ([(0, 1)], 8, 0),  # a prompt of one token is no decode
        ([(0, 1)] * 6, 8, 0),
        ([(30, 1), (9, 1), (0, 5)], 8, 0),
        ([(30, 1), (9, 1), (16, 7)], 16, 1),  # the chunk does not reach the prompt's end
        ([(0, 4), (260, 20)], 24, 2),  # nobody samples
    ]:
        check(executor, make(parts, partial=partial), RuntimeMode.PIECEWISE, bucket, helpers)


def test_piecewise_decode(shared_executor: ExecutorMaker, helpers: Any) -> None:
    executor = shared_executor(mode="piecewise")
    make = helpers.BatchMaker(executor)
    for num_reqs in (1, 5, 6):
        batch = make([(9 * n + 2, 1) for n in range(num_reqs)], is_decode=True)
        check(executor, batch, RuntimeMode.PIECEWISE, 8, helpers)


def test_full_mixed_batches(shared_executor: ExecutorMaker, helpers: Any) -> None:
    """Only where attention supports it: request slots are padded beside the tokens."""
    executor = shared_executor(mode="full", always=True)
    make = helpers.BatchMaker(executor)
    for num_tokens, bucket in TOKEN_SIZES:
        check(executor, make([(5, num_tokens)]), RuntimeMode.FULL, bucket, helpers)
    for parts, bucket, partial in [
        ([(0, 1)] * 6, 8, 0),
        ([(30, 1), (9, 1), (0, 5)], 8, 0),
        ([(30, 1), (9, 1), (16, 7)], 16, 1),
        ([(270, 20), (0, 4)], 24, 2),
    ]:
        check(executor, make(parts, partial=partial), RuntimeMode.FULL, bucket, helpers)
    for num_reqs, bucket in DECODE_SIZES:
        batch = make([(7 * n + 1, 1) for n in range(num_reqs)], is_decode=True)
        check(executor, batch, RuntimeMode.FULL, bucket, helpers)


def test_the_comparison_notices_a_difference(
    shared_executor: ExecutorMaker, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph reads weights in place; an eager run with one element changed must be told apart."""
    executor = shared_executor(mode="full_and_piecewise")
    batch = helpers.BatchMaker(executor)([(5, 1)], is_decode=True)
    forward = executor.forward

    def changed(**slots: torch.Tensor) -> torch.Tensor:
        return forward(**slots).nextafter(torch.tensor(float("inf")))

    monkeypatch.setattr(executor, "forward", changed)
    with pytest.raises(AssertionError):
        check(executor, batch, RuntimeMode.FULL, 1, helpers)
