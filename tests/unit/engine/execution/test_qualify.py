"""An engine's own graphs pass qualification, and fail it with a fault of PITFALLS 3, 8, 11 or 13 planted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ostinato.engine.attention import get_forward_context
from ostinato.engine.execution import Executor, qualify_steps
from ostinato.engine.execution.qualify import EngineCases
from ostinato.engine.layers import SamplingHead
from ostinato.engine.models import decoder_layer
from ostinato.engine.request import Request
from ostinato.errors import RuntimeStateError
from ostinato.runtime import FindingKind, KeyReport, Poison, QualificationReport, Reason, RuntimeMode
from ostinato.telemetry import KeyQuarantined, MemorySink
from ostinato.testing.engine_faults import baked_page_count, padding_leak, stale_break_output, stray_padded_rows

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

SMALL: dict[str, Any] = {"decode_sizes": (1, 4), "token_sizes": (8,), "max_num_batched_tokens": 8, "max_num_reqs": 4}
ONE_TIER = {"max_model_len": 40, "kv_tokens": 320}


def findings(report: QualificationReport, mode: RuntimeMode) -> dict[FindingKind, Any]:
    """Of the largest key of ``mode``."""
    keys: list[KeyReport] = [key for key in report.keys if key.key.runtime_mode is mode]
    return {finding.kind: finding for finding in keys[0].findings}


# --- sound -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_engine_passes(shared_executor: ExecutorMaker, family: str) -> None:
    executor = shared_executor(family, mode="full_and_piecewise", **SMALL)
    cache = [flat.key.clone() for flat in executor.caches]
    last_ids = executor.last_ids.clone()
    counts = executor.token_counts.random_(9).clone()
    report = qualify_steps(executor)
    assert report.passed, report.to_text()
    assert {key.key.kv_tier for key in report.keys} == {None, 256, 300}
    for key in report.keys:
        assert key.max_gap == 0.0 and key.max_gap_unpadded < 1e-4
        assert key.num_state_tensors == 2 * len(executor.caches) + 2
        assert key.num_cases == (8 if key.key.num_tokens > 1 else 2)
        assert set(key.time_ratios) == {"short contexts", "long contexts"}
    assert all(torch.equal(old, new.key) for old, new in zip(cache, executor.caches, strict=True))
    assert torch.equal(last_ids, executor.last_ids) and torch.equal(counts, executor.token_counts)
    with pytest.raises(RuntimeStateError):
        get_forward_context()


def test_mixed_full_graphs_pass(shared_executor: ExecutorMaker) -> None:
    """Request slots are padded beside the tokens."""
    report = qualify_steps(shared_executor(mode="full", always=True, **SMALL))
    assert report.passed, report.to_text()
    assert {key.key.num_reqs for key in report.keys if key.key.uniform_query_len is None} == {4}


def test_cases_fill_the_key(shared_executor: ExecutorMaker) -> None:
    executor = shared_executor(mode="full_and_piecewise", **SMALL)
    cases = EngineCases(executor)
    for key in executor.graphed.keys:
        live = [case.live for case in cases.of(key)]
        sizes = {n.num_tokens for n in live}
        assert sizes == ({8, 7, 4, 1} if key.num_tokens == 8 else {4, 3, 2, 1} if key.num_tokens == 4 else {1})
        assert all(executor.graphed.key_sizes(key)["num_reqs"] >= (n.num_reqs or 0) for n in live)


@pytest.mark.parametrize("settings", [SMALL, {**SMALL, **ONE_TIER}, {**SMALL, "decode_sizes": (1, 2, 4)}])
def test_contexts_and_poison_are_crossed(shared_executor: ExecutorMaker, settings: dict[str, Any]) -> None:
    """Each kind of context with each kind of padding; a key of one size has no padding to cross with."""
    executor = shared_executor(mode="full_and_piecewise", **settings)
    cases = EngineCases(executor)
    crossed = {(kind, poison) for kind in ("short contexts", "long contexts") for poison in (Poison.NAN, Poison.LARGE)}
    assert {key.num_tokens for key in executor.graphed.keys} >= {1, 4, 8}
    for key in executor.graphed.keys:
        found = [(case.live.num_tokens, case.kind, case.poison) for case in cases.of(key)]
        sizes = {size for size, *_ in found}
        pairs = {(kind, poison) for _, kind, poison in found}
        assert pairs == crossed if len(sizes) > 1 else len(pairs) == 2
        padded = {(kind, poison) for size, kind, poison in found if size < max(sizes)}
        assert padded == crossed or len(sizes) < 3, "where rows are padded at two sizes, on them alone"
        assert len(found) == 2 * len(sizes), "no more cases than two a size"


def test_a_cache_that_holds_one_request_only(make_executor: ExecutorMaker) -> None:
    """Histories are cut to the pages that there are."""
    executor = make_executor(mode="full_and_piecewise", **{**SMALL, "max_model_len": 40, "kv_tokens": 40})
    assert qualify_steps(executor).passed


@pytest.mark.parametrize(
    "limits",
    [
        {"max_model_len": 8, "max_num_reqs": 4, "max_num_batched_tokens": 32, "token_sizes": (32,)},
        {"max_model_len": 8, "max_num_reqs": 2, "max_num_batched_tokens": 64, "token_sizes": (16, 64)},
        {"max_model_len": 4, "max_num_reqs": 4, "max_num_batched_tokens": 16, "token_sizes": (4, 16)},
    ],
)
def test_a_batch_has_no_more_and_no_longer_requests_than_an_engine(
    make_executor: ExecutorMaker, limits: dict[str, Any]
) -> None:
    """Buckets of as many tokens as all requests have together, and of more."""
    executor = make_executor(mode="piecewise", decode_sizes=(1,), page_size=4, kv_tokens=256, **limits)
    report = qualify_steps(executor)
    assert report.passed, report.to_text()
    for key in executor.graphed.keys:
        live = [case.live for case in EngineCases(executor).of(key)]
        assert all((n.num_reqs or 0) <= limits["max_num_reqs"] for n in live)


# --- planted ---------------------------------------------------------------------------------------


def test_row_3_a_break_output_at_a_stale_address(make_executor: ExecutorMaker) -> None:
    executor = make_executor(mode="piecewise", **SMALL, **ONE_TIER)
    with stale_break_output():
        report = qualify_steps(executor)
    found = findings(report, RuntimeMode.PIECEWISE)[FindingKind.DIFFERS]
    assert found.where == "the hand-over of break 0 paged_attention"
    assert str(report.keys[0].key) == "PIECEWISE tokens=8"
    assert executor.graphed.counters.steps == 0


@pytest.fixture
def longest() -> Iterator[None]:
    """Row 8, from before capture on."""
    with baked_page_count():
        yield


def test_row_8_a_page_count_is_baked(make_executor: ExecutorMaker, longest: None) -> None:
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
    report = qualify_steps(executor)
    found = findings(report, RuntimeMode.FULL)
    baked = found[FindingKind.BAKED_VALUE]
    assert "aten::slice(" in baked.what and "end=" in baked.what and baked.where.endswith(" aten::slice")
    assert found[FindingKind.DIFFERS].where.startswith("segment 0")
    assert not any(key.passed for key in report.keys)


def test_row_11_padded_rows_write_to_a_live_page(make_executor: ExecutorMaker) -> None:
    """The slots of padded rows point into a page of somebody else, or of the batch itself."""
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
    with stray_padded_rows(lambda _host: 4 * 60 + 1):
        found = findings(qualify_steps(executor), RuntimeMode.FULL)[FindingKind.STATE_WRITES]
    assert found.what == "state keys of layer 0: row 241 written, outside the live set of 3 rows"
    assert found.case.startswith("3 of 4 rows, 3 requests")

    with stray_padded_rows():  # then eager at the padded shape goes wrong alike
        both = findings(qualify_steps(executor), RuntimeMode.FULL)
    assert "state keys of layer 0" in both[FindingKind.STATE_WRITES].what
    assert "without padded rows" in both[FindingKind.PADDING_LEAKS].what


def test_row_11_in_a_large_cache(make_executor: ExecutorMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches live in the first pages; a write far behind them shows in the checksum of the rest."""
    monkeypatch.setattr("ostinato.engine.execution.qualify._MAX_WATCHED_BYTES", 0)
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
    assert qualify_steps(executor).passed
    num_watched = len(EngineCases(executor).state()["keys of layer 0"])
    assert num_watched < 4 * 70 < executor.caches[0].num_pages * 4
    with stray_padded_rows(lambda _host: 4 * 70 + 1):
        found = findings(qualify_steps(executor), RuntimeMode.FULL)[FindingKind.STATE_WRITES]
    assert found.what == f"state keys of layer 0, from page {num_watched // 4} on: written, where no step may write"


def test_row_13_garbage_of_padded_rows_leaks(make_executor: ExecutorMaker) -> None:
    with padding_leak():
        executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
        report = qualify_steps(executor)
    found = findings(report, RuntimeMode.FULL)
    assert "NaN or infinity in one of them alone" in found[FindingKind.PADDING_LEAKS].what
    assert found[FindingKind.PADDING_LEAKS].case.startswith("3 of 4 rows")
    assert [key.passed for key in report.keys] == [key.key.num_tokens == 1 for key in report.keys]


def test_tokens_counted_in_the_row_of_another_request(
    make_executor: ExecutorMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = SamplingHead.__call__

    def stray(self: SamplingHead, logits: Tensor, settings: Tensor, count_rows: Tensor, *more: Tensor) -> None:
        call(self, logits, settings, torch.where(count_rows > 0, count_rows % 4 + 1, 0), *more)

    monkeypatch.setattr(SamplingHead, "__call__", stray)
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
    found = findings(qualify_steps(executor), RuntimeMode.FULL)[FindingKind.STATE_WRITES]
    assert found.what == "state token counts: row 2 written, outside the live set of 1 rows"


def test_row_13_a_scale_over_all_rows(make_executor: ExecutorMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite garbage: a group scale too small to see without comparing bits."""
    forward = decoder_layer.DecoderLayer.forward

    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden, *rest = forward(self, *args, **kwargs)
        return (hidden + 1e-6 * hidden.mean(0), *rest)

    monkeypatch.setattr(decoder_layer.DecoderLayer, "forward", scaled)
    executor = make_executor(mode="full_and_piecewise", **SMALL, **ONE_TIER)
    report = qualify_steps(executor)
    for mode in (RuntimeMode.FULL, RuntimeMode.PIECEWISE):
        found = findings(report, mode)[FindingKind.PADDING_LEAKS]
        assert "with other values in padded rows" in found.what and "aten::mean" in found.where


def test_quarantined_keys_are_not_taken(make_executor: ExecutorMaker, helpers: Any, longest: None) -> None:
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER)
    qualify_steps(executor)
    batch = helpers.BatchMaker(executor)([(9, 1), (30, 1)], is_decode=True)
    decision = helpers.decision_for(executor, batch)
    assert decision.runtime_mode is RuntimeMode.EAGER and decision.reason is Reason.QUARANTINED
    assert executor.execute(batch).logits.isfinite().all()


# --- shadow ----------------------------------------------------------------------------------------


def serve(executor: Executor, helpers: Any) -> list[Tensor]:
    """The logits of a few steps: prompts in chunks, then decodes, some of them while another prompt comes in."""
    serving = helpers.Serving(executor, max_num_batched_tokens=8, max_num_reqs=4)
    given = []
    for number, length in enumerate((5, 11, 3)):
        serving.scheduler.add(Request(request_id=str(number), prompt_token_ids=list(range(7, 7 + length))))
        for _ in range(3):
            given.append(serving.step()[1].clone())
            executor.finish_shadow()
    return given


def test_shadows_of_sound_steps_change_nothing(make_executor: ExecutorMaker, helpers: Any) -> None:
    plain = serve(make_executor(mode="full_and_piecewise", **SMALL, **ONE_TIER), helpers)
    executor = make_executor(mode="full_and_piecewise", **SMALL, **ONE_TIER, shadow_every=1)
    shadowed = serve(executor, helpers)
    counts = executor.graphed.shadow_counts
    assert (counts.num_compared, counts.num_skipped, counts.num_dropped) == (len(plain), 0, 0)
    taken = executor.graphed.counters
    assert set(taken.by_runtime_mode) == {"FULL", "PIECEWISE"} and "QUARANTINED" not in taken.by_reason
    assert all(torch.equal(a, b) for a, b in zip(plain, shadowed, strict=True))


def test_a_shadow_finds_a_baked_number_while_serving(make_executor: ExecutorMaker, helpers: Any, longest: None) -> None:
    sink = MemorySink()
    executor = make_executor(mode="full_decode_only", **SMALL, **ONE_TIER, shadow_every=1)
    executor.graphed._bus.subscribe(sink)
    executor.execute(helpers.BatchMaker(executor)([(30, 1)], is_decode=True))  # captured with one page: it has eight
    executor.finish_shadow()
    (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
    assert (event.found_by, event.key) == ("shadow", "FULL tokens=1 reqs=1 query_len=1 kv_tier=40")
