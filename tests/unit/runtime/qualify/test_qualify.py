"""`Graphed.qualify` on small callables: what passes, what is caught, what it says, and that it leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.errors import ClosedError, ConfigError, InputSpecError, QualificationError, RuntimeStateError
from ostinato.runtime import (
    Case,
    FindingKind,
    GraphConfig,
    Graphed,
    GraphKey,
    LiveBatch,
    QualificationReport,
    Reason,
    RuntimeMode,
    Slot,
    Writes,
    graph_break,
)
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.runners import CapturedPlan
from ostinato.telemetry import KeyQuarantined, MemorySink

ROWS = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
SIZES = (4, 8)


@graph_break
def squared(h: torch.Tensor) -> torch.Tensor:
    return h * h


def through_a_break(x: torch.Tensor) -> torch.Tensor:
    return squared(x + 1).tanh()


def test_a_sound_callable_passes(ready):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    graphed = ready(model, ROWS, sizes=SIZES)
    report = graphed.qualify()
    assert report.passed and report.is_bitwise and not report.notes
    for key in report.keys:
        assert key.num_cases == 2 + 3 * 2 * 3  # exact fit, then one short, half and minimum; mixes; kinds of padding
        assert key.max_gap == 0.0
        assert 0.0 <= key.max_gap_unpadded < 1e-5
        assert key.time_ratio is not None and key.time_ratio > 0
    report.check()
    assert graphed.explain(ROWS).reason is Reason.EXACT


def test_a_graph_that_is_slower_than_eager_is_warned_of_and_passes(ready, monkeypatch):
    """Its launch topology may have been frozen badly."""
    graphed = ready(through_a_break, ROWS, sizes=(8,), mode="piecewise")
    replay = CapturedPlan.replay
    monkeypatch.setattr(CapturedPlan, "replay", lambda plan, num_live: (time.sleep(0.02), replay(plan, num_live))[1])
    report = graphed.qualify()
    assert report.passed
    (warning,) = report.keys[0].warnings
    assert warning.startswith("slower: a replay takes ") and report.keys[0].time_ratio > 2


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_segments_and_bridges_pass(ready, partition):
    report = ready(through_a_break, ROWS, sizes=SIZES, mode="piecewise", partition=partition).qualify()
    assert report.passed, report.to_text()


def test_random_numbers_and_lasting_outputs_pass(ready):
    weight = torch.ones(8)
    graphed = ready(lambda x: (nn.functional.dropout(x), weight, x), ROWS, sizes=SIZES)
    random = torch.get_rng_state()
    assert graphed.qualify().passed
    assert graphed.bisect(graphed.keys[0]) == [], "nothing is wrong, so nothing is blamed"
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(weight, torch.ones(8)), "an output that the graph does not own is not overwritten"


@pytest.mark.parametrize(
    ("fn", "op"),
    [
        (lambda x: torch.softmax(x, 0), "aten::_softmax"),
        (lambda x: x - x.mean(0), "aten::mean"),
        (lambda x: x.flip(0), "aten::flip"),
        (lambda x: x / x.abs().amax(), "aten::amax"),
        (lambda x: x[x.sum(1).argsort()], "aten::sort"),
    ],
)
def test_rows_that_depend_on_each_other_are_caught(ready, fn, op):
    graphed = ready(fn, ROWS, sizes=SIZES)
    report = graphed.qualify()
    assert len(report.failed) == 2
    (finding,) = report.keys[0].findings
    assert finding.kind is FindingKind.PADDING_LEAKS and op in finding.where
    assert "of 8 rows" in finding.case
    assert graphed.explain(ROWS).reason is Reason.QUARANTINED
    (culprit,) = graphed.bisect(graphed.keys[0])
    assert culprit.segment is None and culprit.break_name == "", "the graph does what eager does at its shape"
    assert str(culprit).startswith("no segment: in eager runs too") and op in culprit.op
    assert "depends on padded rows" in culprit.what


def test_garbage_that_zeros_would_hide_is_caught(ready):
    """Serving pads with zeros, which a sum does not show; NaN does."""
    graphed = ready(lambda x: x.sum(0), ROWS, sizes=SIZES)
    (key, _) = graphed.qualify().keys
    (culprit,) = graphed.bisect(key.key)
    assert "aten::sum" in culprit.op
    assert key.findings[0].kind is FindingKind.PADDING_LEAKS and "padding nan" in key.findings[0].case


def test_a_frozen_number_is_named(ready):
    holder = SimpleNamespace(value=3)
    graphed = ready(lambda x: (x + 1) * holder.value, ROWS, sizes=(8,))
    holder.value = 5
    (key,) = graphed.qualify().keys
    by_kind = {finding.kind: finding for finding in key.findings}
    assert "argument other of aten::mul is 5 in one capture and 3" in by_kind[FindingKind.BAKED_VALUE].what
    assert by_kind[FindingKind.BAKED_VALUE].where == "segment 0, op 1 aten::mul, argument other"
    assert by_kind[FindingKind.DIFFERS].where == "segment 0, op 1 aten::mul"


def test_a_number_that_follows_the_batch_is_named(ready):
    """Both captures go right on their own batch: only side by side they show what neither carries in its key."""
    seen = {}

    def fn(x):
        return x * 1 if seen["rows"] == 4 else x.mul(2).mul(0.5)

    class Cases:
        def state(self):
            return {}

        def of(self, key):
            for rows in (4, 2):

                def fill(rows=rows):
                    seen["rows"] = rows
                    graphed.buffers.views(graphed.key_sizes(key))["x"].fill_(rows)

                yield Case(name=f"{rows} rows", live=LiveBatch(num_tokens=rows), fill=fill, cut=lambda y, n=rows: y[:n])

    seen["rows"] = 4
    graphed = ready(fn, ROWS[:4], sizes=(4,))
    (key,) = graphed.qualify(cases=Cases()).keys
    (finding,) = key.findings
    assert finding.kind is FindingKind.BAKED_VALUE and "aten::mul" in finding.where


def test_an_offset_in_a_view_is_named(ready):
    log = SimpleNamespace(rows=torch.zeros(1024), end=0)

    def step(x):
        log.rows[log.end : log.end + x.shape[0]] = x
        log.end += 4
        return x + 0

    graphed = ready(step, torch.ones(4), sizes=(4,), warm_up_runs=1)
    (key,) = graphed.qualify().keys
    assert FindingKind.BAKED_VALUE in {f.kind for f in key.findings}
    assert any("aten::slice" in f.where and "argument" in f.where for f in key.findings)


@graph_break
def shifted(h: torch.Tensor, by: float) -> torch.Tensor:
    return h + by


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_a_frozen_argument_of_a_break_is_named(ready, partition):
    """Read from Python state, so no replay sees that it is another now. A trace makes a constant of it, and every
    capture of that trace the same."""
    holder = SimpleNamespace(by=1)
    graphed = ready(lambda x: shifted(x, holder.by) * 3, ROWS, sizes=SIZES, mode="piecewise", partition=partition)
    assert graphed.qualify().passed
    holder.by = 5
    assert torch.equal(graphed(ROWS), (ROWS + 1) * 3), "a replay goes on with the frozen value, and cannot know"
    report = graphed.qualify()
    assert not any(key.passed for key in report.keys)
    for key in report.keys:
        finding = key.findings[0]
        assert finding.kind is FindingKind.BAKED_VALUE
        assert "[OST305] argument 'by' of break 'shifted' has changed since capture" in finding.what
        assert "at_capture=1, now=5" in finding.what
        assert finding.where.startswith(__file__)
        assert {f.kind for f in key.findings} == {FindingKind.BAKED_VALUE, FindingKind.DIFFERS}
    assert torch.equal(graphed(ROWS), (ROWS + 5) * 3), "quarantined"


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_a_frozen_argument_that_no_output_shows_is_named(ready, partition):
    holder = SimpleNamespace(by=1)
    graphed = ready(lambda x: shifted(x, holder.by) > 1e6, ROWS, sizes=(8,), mode="piecewise", partition=partition)
    holder.by = 2
    (key,) = graphed.qualify().keys
    (finding,) = key.findings
    assert finding.kind is FindingKind.BAKED_VALUE and "argument 'by'" in finding.what


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_arguments_of_breaks_that_follow_the_bucket_pass(ready, partition):
    """Defaults, sizes and whole numbers for decimals: a trace passes them otherwise than the callable does."""

    @graph_break
    def sized(h, rows, scale=2.0, label=None):
        return h * scale + rows

    def fn(x):
        return sized(sized(sized(x, x.shape[0]), 4, 3), 4, 1.5, label="third") + 1

    report = ready(fn, ROWS, sizes=SIZES, mode="piecewise", partition=partition).qualify()
    assert not [f for key in report.keys for f in key.findings if f.kind is FindingKind.BAKED_VALUE], report.to_text()


# --- state -----------------------------------------------------------------------------------------

PAGE, NUM_SLOTS = 4, 16


class CacheCases:
    """Rows go to slots 4, 5, ... of a cache; padded rows to ``spare``."""

    def __init__(self, graphed: Graphed, cache: torch.Tensor, *, pads: int, spare: list[int]) -> None:
        self.graphed, self.cache, self.pads, self.spare = graphed, cache, pads, spare

    def state(self):
        return {"cache": self.cache}

    def of(self, key: GraphKey):
        for rows in (4, 3, 1):

            def fill(rows: int = rows) -> None:
                views = self.graphed.buffers.views(self.graphed.key_sizes(key))
                views["values"].fill_(0.0)
                views["values"][:rows] = torch.arange(1.0, rows + 1)
                views["slots"].fill_(self.pads)
                views["slots"][:rows] = torch.arange(4, 4 + rows)

            yield Case(
                name=f"{rows} rows",
                live=LiveBatch(num_tokens=rows),
                fill=fill,
                cut=lambda out, rows=rows: out[:rows],
                writes={"cache": Writes(torch.arange(4, 4 + rows), torch.tensor(self.spare, dtype=torch.int64))},
            )


def with_cache(store: Callable[..., torch.Tensor], **kind: object) -> tuple[QualificationReport, torch.Tensor]:
    cache = torch.arange(16.0) + 100
    slots = {
        "slots": Slot(shape=(None,), dtype=torch.int64, valid_range=(0, NUM_SLOTS)),
        "values": Slot(shape=(None,), dtype=torch.float32),
    }
    with Graphed(lambda s, v: store(cache, s, v), slots=slots, config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        cache.copy_(torch.arange(16.0) + 100)
        report = graphed.qualify(cases=CacheCases(graphed, cache, **kind))  # type: ignore[arg-type]
    return report, cache


def store(cache: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    cache[slots] = values
    return values * 2


def test_writes_of_the_live_set_and_the_null_page_pass_and_are_undone():
    report, cache = with_cache(store, pads=0, spare=[0])
    assert report.passed, report.to_text()
    assert torch.equal(cache, torch.arange(16.0) + 100)


def test_a_write_outside_the_live_set_is_caught():
    report, _ = with_cache(store, pads=9, spare=[0])
    (finding,) = report.keys[0].findings
    assert finding.kind is FindingKind.STATE_WRITES
    assert finding.what == "state cache: row 9 written, outside the live set of 3 rows"
    assert finding.case == "3 rows"


def test_a_write_that_the_capture_left_out_is_caught():
    """What a lazily initialised flag does: warm-up and eager write, the recorded work does not."""

    def unless_recorded(cache, slots, values):
        return values * 2 if is_recording() else store(cache, slots, values)

    report, _ = with_cache(unless_recorded, pads=0, spare=[0])
    (finding,) = report.keys[0].findings
    assert finding.kind is FindingKind.STATE_WRITES
    assert finding.what.startswith("state cache: rows 4, 5, 6, 7 as eager does not leave them")


# --- order and bad input ----------------------------------------------------------------------------


def kill(plan):
    """Put a `DeadGraph` in the place of the first segment."""
    plan.entries[0] = DeadGraph(plan.entries[0])
    plan._calls.clear()


class DeadGraph:
    """A segment that does nothing any more, and cannot be taken apart."""

    def __init__(self, graph):
        self.num_nodes, self.baked, self.close = graph.num_nodes, graph.baked, graph.close

    def replay(self):
        pass

    def launcher(self):
        return self.replay

    def steps(self):
        return None


def test_quarantine_is_told_and_the_next_bucket_serves():
    sink = MemorySink()
    config = GraphConfig(sizes=SIZES)
    with Graphed(lambda x: x * 2, example=(ROWS,), config=config, sinks=[sink]) as graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(ROWS[:4])
        kill(graphed.plans[graphed.keys[1]])
        graphed.qualify()
        (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert (event.key, event.found_by, event.where) == ("FULL tokens=4", "qualify", "segment 0")
        decision = graphed.explain(ROWS[:3])
        assert decision.padded_tokens == 8
        assert [(r.candidate, r.reason) for r in decision.alternatives] == [("FULL tokens=4", Reason.QUARANTINED)]
        graphed.recapture()
        assert graphed.qualify().passed
        assert graphed.explain(ROWS[:3]).padded_tokens == 4, "a new capture starts with a clean record"


def test_a_result_buffer_of_the_callable_is_overwritten_too():
    """Eager and replay return one tensor: a replay that writes nothing would show what eager has left there."""
    holder = SimpleNamespace(out=torch.zeros(8, 8))

    def fn(x):
        return torch.mul(x, 2, out=holder.out[: x.shape[0]])

    with Graphed(fn, example=(ROWS,), config=GraphConfig(sizes=SIZES)) as graphed:
        graphed.warm_up()
        graphed.capture()
        assert graphed.qualify().passed
        kill(graphed.plans[graphed.keys[0]])
        (finding, *_) = graphed.qualify().keys[0].findings
        assert finding.kind is FindingKind.DIFFERS


def test_one_key_alone(ready):
    graphed = ready(through_a_break, ROWS, sizes=SIZES)
    told = []
    report = graphed.qualify(keys=graphed.keys[1:], on_key=told.append)
    assert [key.key.num_tokens for key in report.keys] == [4] and told == report.keys


def test_out_of_order_and_unknown():
    graphed = Graphed(through_a_break, example=(ROWS,), config=GraphConfig(sizes=SIZES))
    with pytest.raises(RuntimeStateError, match="qualify"):
        graphed.qualify()
    graphed.warm_up()
    graphed.capture()
    unknown = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=5)
    for call in (lambda: graphed.qualify(keys=[unknown]), lambda: graphed.bisect(unknown)):
        with pytest.raises(RuntimeStateError, match="no graph of FULL tokens=5"):
            call()
    graphed.close()
    for call in (graphed.qualify, lambda: graphed.bisect(unknown)):
        with pytest.raises(ClosedError):
            call()


def test_nothing_to_qualify():
    with Graphed(through_a_break, example=(ROWS,), config=GraphConfig(mode="none")) as graphed:
        graphed.warm_up()
        assert graphed.qualify().keys == []


def test_batches_that_cannot_be_made_up():
    slots = {
        "x": Slot(shape=(None,), dtype=torch.float32),
        "starts": Slot(shape=(None,), dtype=torch.int32, axis="num_reqs", extra=1),
    }
    config = GraphConfig(sizes=(4,), max_num_reqs=2)
    with Graphed(lambda x, starts: x + 1, slots=slots, config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        with pytest.raises(ConfigError, match="starts"):
            graphed.qualify()


def test_a_callable_that_fails_on_a_made_up_batch(ready):
    fails = []

    def fn(x):
        if fails:
            raise ValueError("not these rows")
        return x + 1

    graphed = ready(fn, ROWS, sizes=(8,))
    fails.append(1)
    with pytest.raises(QualificationError, match="not these rows"):
        graphed.qualify()


def test_integers_keep_to_the_example(ready):
    table = torch.randn(40, 3)
    graphed = ready(lambda ids: table[ids], torch.tensor([39, 12, 17, 12]), sizes=(4,))
    report = graphed.qualify()
    assert report.passed and not report.notes


def test_integers_of_unknown_range_are_told():
    slots = {"ids": Slot(shape=(None,), dtype=torch.int64)}
    table = torch.randn(2, 3)
    with Graphed(lambda ids: table[ids], slots=slots, config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        report = graphed.qualify()
    assert report.passed
    assert report.notes == ["slot ids declares no valid_range, so it was filled with zeros only"]


def test_the_report_as_values_and_text(ready):
    report = ready(lambda x: x.flip(0), ROWS, sizes=(8,)).qualify()
    document = report.to_dict()
    assert document["passed"] is False and document["backend"] == "simulated" and document["bitwise"] is True
    assert document["tolerances"] == {"float64": 1e-4, "float32": 1e-4, "bfloat16": 2e-2, "float16": 1e-2}
    assert document["tolerances_unpadded"]["float32"] == 1e-3
    assert document["keys"][0]["findings"][0]["kind"] == "PADDING_LEAKS"
    assert report.to_text().startswith("FAIL  FULL tokens=8")
    with pytest.raises(QualificationError, match="FULL tokens=8: PADDING_LEAKS"):
        report.check()


def test_state_is_as_before(ready):
    count = torch.zeros(8)

    def fn(x):
        count.add_(1)
        return x + count[0]

    graphed = ready(fn, ROWS, sizes=(8,))
    count.fill_(7.0)
    inputs = graphed.buffers.arena.clone()
    report = graphed.qualify()
    assert report.passed, report.to_text()
    assert torch.equal(count, torch.full((8,), 7.0))
    assert torch.equal(graphed.buffers.arena, inputs)


def test_a_callable_that_writes_its_arguments_is_refused_before():
    with Graphed(lambda x: x.add_(1), example=(ROWS,), config=GraphConfig(sizes=(8,))) as graphed:  # noqa: SIM117
        with pytest.raises(InputSpecError):
            graphed.warm_up()
