"""Settings of the facade that choose: exact sizes only, multiples of a size, a step's own veto."""

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Reason, RuntimeMode, Slot, Veto
from ostinato.telemetry import KeyDropped, MemorySink

X = torch.ones(8, 2)


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_without_padding_only_exact_sizes_replay(ready, mode):
    graphed = ready(lambda x: x * 2, X, mode=mode, sizes=(4, 8), padding=False)
    for rows in (4, 3, 8, 9, 5):
        assert torch.equal(graphed(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))
    assert graphed.counters.by_reason == {"EXACT": 2, "PADDING_OFF": 2, "OVER_LARGEST": 1}
    assert graphed.counters.padded_tokens == 0


def test_sizes_that_ranks_cannot_share_are_dropped_and_told():
    sink = MemorySink()
    config = GraphConfig(sizes=(3, 4, 6, 8), size_multiple=4)
    graphed = Graphed(lambda x: x * 2, example=(X,), config=config, sinks=[sink])
    assert [key.num_tokens for key in graphed.keys] == [8, 4]
    assert [event for event in sink.events if isinstance(event, KeyDropped)] == [
        KeyDropped(key="FULL tokens=3", reason="3 tokens are no multiple of 4"),
        KeyDropped(key="FULL tokens=6", reason="6 tokens are no multiple of 4"),
    ]


def test_no_multiple_drops_nothing():
    sink = MemorySink()
    Graphed(lambda x: x * 2, example=(X,), config=GraphConfig(sizes=(3, 8)), sinks=[sink])
    assert not [event for event in sink.events if isinstance(event, KeyDropped)]


@pytest.mark.parametrize(("veto", "runtime_mode"), [(None, "FULL"), (Veto.FULL, "PIECEWISE"), (Veto.GRAPHS, "EAGER")])
def test_a_step_may_forbid_its_own_graphs(veto, runtime_mode):
    slots = {"x": Slot(shape=(None, 2), dtype=torch.float32)}
    config = GraphConfig(mode="full_and_piecewise", sizes=(4, 8), decode_sizes=(4,), max_num_reqs=4)
    with Graphed(lambda x: x * 2, slots=slots, config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        live = LiveBatch(num_tokens=3, num_reqs=3, uniform_query_len=1, veto=veto, veto_reason="cascade attention")
        decision = graphed.decide(live)
        assert decision.runtime_mode is RuntimeMode(runtime_mode)
        sizes = graphed.sizes(decision)
        graphed.buffers.views(sizes)["x"].fill_(5.0)
        assert graphed.run(decision)[:3].eq(10).all()
        assert graphed.counters.by_runtime_mode == {runtime_mode: 1}
        if veto is not None:
            assert Reason.VETOED in [rejection.reason for rejection in decision.alternatives]
            assert "cascade attention" in str(decision)
        if veto is Veto.GRAPHS:
            assert graphed.counters.by_reason == {"VETOED": 1}
