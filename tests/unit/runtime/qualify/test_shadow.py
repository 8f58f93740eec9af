"""`shadow_every`: one replayed step in K runs eagerly too, between steps, and a difference quarantines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ostinato.errors import ConfigError
from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Reason, graph_break
from ostinato.runtime.qualify import WholeState
from ostinato.telemetry import KeyQuarantined, MemorySink, ShadowFailed

ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def opened(fn, *, every: int, sink: MemorySink | None = None, **settings: str) -> Graphed:
    config = GraphConfig(sizes=(4,), shadow_every=every, **settings)
    graphed = Graphed(fn, example=(ROWS,), config=config, sinks=[sink] if sink else [])
    graphed.warm_up()
    graphed.capture()
    return graphed


def test_one_step_in_so_many_runs_again_before_the_next():
    calls = []

    def fn(x):
        calls.append(x.shape[0])
        return x * 2

    with opened(fn, every=3) as graphed:
        calls.clear()
        for step in range(1, 8):
            assert torch.equal(graphed(ROWS), ROWS * 2)
            assert len(calls) == (step - 1) // 3, "a step's own call does not wait for its shadow"
        graphed.finish_shadow()
        assert len(calls) == 2, "the seventh step is none of those"
        assert set(calls) == {4}


def test_sound_steps_with_state_pass_and_leave_no_trace():
    total = torch.zeros(8)

    def fn(x):
        total.add_(x[0])
        return x + total

    sink = MemorySink()
    with opened(fn, every=1, sink=sink) as graphed:
        total.zero_()
        expected = torch.zeros(8)
        for rows in (4, 3, 1, 4):
            expected += ROWS[0]
            assert torch.equal(graphed(ROWS[:rows]), ROWS[:rows] + expected)
        graphed.finish_shadow()
        assert torch.equal(total, expected), "the eager run counts for nothing"
        assert not [e for e in sink.events if isinstance(e, KeyQuarantined)]


@pytest.mark.parametrize("is_inference", [False, True])
def test_weights_that_are_written_in_place_are_no_fault_of_a_step_before(is_inference):
    """As guards advise. What was kept is dropped, and later steps are compared with the new weights."""
    model = torch.nn.Linear(8, 8)
    sink = MemorySink()
    with torch.inference_mode(is_inference), opened(model, every=1, sink=sink) as graphed:
        graphed(ROWS)
        with torch.no_grad():
            model.weight.copy_(-model.weight)
        for _ in range(2):
            assert torch.equal(graphed(ROWS), model(ROWS))
        graphed.finish_shadow()
        counts = graphed.shadow_counts
        assert (counts.num_compared, counts.num_dropped) == (2, 1)
        assert not [e for e in sink.events if isinstance(e, KeyQuarantined)]


def test_random_steps_pass():
    sink = MemorySink()
    with opened(torch.nn.functional.dropout, every=1, sink=sink) as graphed:
        graphed(ROWS)
        random = torch.get_rng_state()
        graphed.finish_shadow()
        assert torch.equal(torch.get_rng_state(), random)
        assert graphed.explain(ROWS).reason is Reason.EXACT


def test_steps_that_draw_from_a_generator_of_their_own_pass_and_move_it_once():
    """Eager draws what the replay has drawn, and what comes next is what eager steps alone would have drawn."""
    own = torch.Generator().manual_seed(1)
    twin = torch.Generator()
    sink = MemorySink()
    with opened(lambda x: x + torch.rand(x.shape, generator=own), every=1, sink=sink) as graphed:
        twin.set_state(own.get_state())
        for _ in range(3):
            assert torch.equal(graphed(ROWS), ROWS + torch.rand(ROWS.shape, generator=twin))
        graphed.finish_shadow()
        assert torch.equal(own.get_state(), twin.get_state())
        assert graphed.shadow_counts.num_compared == 3
        assert not [e for e in sink.events if isinstance(e, KeyQuarantined)]


def test_a_shadow_that_fails_harms_no_call():
    holder = SimpleNamespace(fails=False)

    def fn(x):
        if holder.fails:
            raise ValueError("planted")
        return x * 2

    sink = MemorySink()
    with opened(fn, every=1, sink=sink) as graphed:
        graphed(ROWS)
        holder.fails = True
        assert torch.equal(graphed(ROWS), ROWS * 2), "its own replay calls no Python"
        graphed.finish_shadow()
        failed = [(e.key, e.error) for e in sink.events if isinstance(e, ShadowFailed)]
        assert failed == [("FULL tokens=4", "ValueError: planted")] * 2
        holder.fails = False
        graphed(ROWS)
        graphed.finish_shadow()
        counts = graphed.shadow_counts
        assert (counts.num_compared, counts.num_dropped) == (1, 2)
        assert graphed.explain(ROWS).reason is Reason.EXACT, "a step that was not compared is no fault of its key"


@pytest.mark.parametrize("fails_in", ["written", "cut"], ids=["before the replay", "after it"])
def test_a_step_that_cannot_be_kept_is_served_all_the_same(fails_in):
    class Owner(WholeState):
        def fail(self, *asked):
            raise ValueError("planted")

    total, sink = torch.zeros(8), MemorySink()
    owner = Owner({"total": total}, lambda outputs, num_live: outputs[:num_live])

    def fn(x):
        total.add_(1)
        return x + total

    config = GraphConfig(sizes=(4,), shadow_every=1, failures_to_quarantine=1)
    with Graphed(fn, example=(ROWS,), config=config, shadow=owner, sinks=[sink]) as graphed:
        graphed.warm_up()
        graphed.capture()
        total.zero_()
        setattr(owner, fails_in, owner.fail)
        assert torch.equal(graphed(ROWS), ROWS + 1) and torch.equal(total, torch.ones(8)), "it runs, and once"
        assert [(e.key, e.error) for e in sink.events if isinstance(e, ShadowFailed)] == [
            ("FULL tokens=4", "ValueError: planted")
        ]
        delattr(owner, fails_in)
        assert torch.equal(graphed(ROWS), ROWS + 2)
        graphed.finish_shadow()
        counts = graphed.shadow_counts
        assert (counts.num_compared, counts.num_skipped, counts.num_dropped) == (1, 0, 1)
        assert graphed.explain(ROWS).reason is Reason.EXACT


def test_a_frozen_number_is_found_while_serving():
    holder = SimpleNamespace(value=2)
    sink = MemorySink()
    with opened(lambda x: x * holder.value, every=2, sink=sink) as graphed:
        for _ in range(4):
            graphed(ROWS)
        assert graphed.explain(ROWS).reason is Reason.EXACT
        holder.value = 3
        graphed(ROWS)  # finishes the shadow of step 4, which was computed with 2: only eager sees the change
        (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert (event.key, event.found_by, event.where) == ("FULL tokens=4", "shadow", "live output")
        assert graphed.explain(ROWS).reason is Reason.QUARANTINED
        assert torch.equal(graphed(ROWS), ROWS * 3)


@graph_break
def shifted(h: torch.Tensor, by: int) -> torch.Tensor:
    return h + by


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_a_frozen_argument_of_a_break_is_named_while_serving(partition):
    holder = SimpleNamespace(by=1)
    sink = MemorySink()
    settings = {"mode": "piecewise", "partition": partition}
    with opened(lambda x: shifted(x, holder.by) * 3, every=1, sink=sink, **settings) as graphed:
        graphed(ROWS)
        graphed.finish_shadow()
        assert graphed.explain(ROWS).reason is Reason.EXACT
        holder.by = 5
        assert torch.equal(graphed(ROWS), (ROWS + 1) * 3)
        graphed.finish_shadow()
        (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert event.found_by == "shadow" and event.where.startswith(__file__)
        assert "argument 'by' of break 'shifted' has changed since capture" in event.what
        assert torch.equal(graphed(ROWS), (ROWS + 5) * 3)


def test_a_wrong_write_is_found_while_serving():
    written = torch.zeros(4)
    holder = SimpleNamespace(at=0)

    def fn(x):
        written[holder.at : holder.at + 1] = x[:1, 0]
        return x * 2

    sink = MemorySink()
    with opened(fn, every=1, sink=sink) as graphed:
        holder.at = 2
        graphed(ROWS)
        graphed.finish_shadow()
        (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert event.where == "state written"


def test_release_drops_what_was_kept():
    with opened(lambda x: x + 1, every=1) as graphed:
        graphed(ROWS)
        graphed.release()
        graphed.finish_shadow()
        graphed(ROWS)


@pytest.mark.parametrize("every", [-1, 2.5, True])
def test_bad_periods(every):
    with pytest.raises(ConfigError, match="shadow_every"):
        GraphConfig(shadow_every=every)


def test_one_step_waits_at_most_and_can_be_dropped():
    """As an engine does it, which chooses when to compare."""
    holder = SimpleNamespace(value=2)
    sink = MemorySink()
    with opened(lambda x: x * holder.value, every=2, sink=sink) as graphed:
        decision = graphed.decide(LiveBatch(num_tokens=4))
        (slot,) = graphed.buffers.views(graphed.sizes(decision)).values()

        def steps(count):
            for _ in range(count):
                slot.copy_(ROWS)
                graphed.run(decision)

        counts = graphed.shadow_counts
        steps(1)
        assert graphed.shadow_key is None
        steps(6)
        assert graphed.shadow_key == decision.key
        assert (counts.num_compared, counts.num_skipped, counts.num_dropped) == (0, 2, 0)
        holder.value = 3
        graphed.drop_shadow()
        graphed.finish_shadow()
        assert graphed.shadow_key is None and not [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert (counts.num_compared, counts.num_dropped) == (0, 1)
        steps(2)
        slot.zero_()  # what was kept is the step's own
        graphed.finish_shadow()
        assert slot.eq(0).all(), "and what stands there now is put back"
        assert [e.found_by for e in sink.events if isinstance(e, KeyQuarantined)] == ["shadow"]
        assert (counts.num_compared, counts.num_skipped) == (1, 2)
