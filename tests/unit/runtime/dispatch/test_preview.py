"""A preview decides as the captured callable does, and as the resolved mode says of each phase."""

import itertools

import pytest
import torch

from ostinato.runtime import (
    CaptureSupport,
    GraphConfig,
    Graphed,
    LiveBatch,
    Mode,
    ModeRequest,
    Phase,
    Reason,
    Slot,
    preview,
    resolve_mode,
)

SLOTS = {"x": Slot(shape=(None, 2), dtype=torch.float32)}


@pytest.mark.parametrize("mode", ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto"])
def test_it_is_what_the_captured_callable_decides(mode):
    config = GraphConfig(mode=mode, sizes=(4, 8), decode_sizes=(1, 4), max_num_reqs=4, max_size=8, max_padding=3.0)
    with Graphed(lambda x: x * 2, slots=SLOTS, config=config) as graphed:
        graphed.warm_up().capture()
        costs = graphed.measure(budget_seconds=0.01)
        for table in (None, costs):
            graphed.use_costs(table)
            for n in range(1, 10):
                for query_len in (None, 1):
                    live = LiveBatch(num_tokens=n, num_reqs=min(n, 4), uniform_query_len=query_len if n <= 4 else None)
                    assert preview(live, config, device_type="cpu", costs=table) == graphed.decide(live)


@pytest.mark.parametrize(("max_num_reqs", "query_len"), [(None, 1), (4, 1), (4, 3)])
@pytest.mark.parametrize("mode", list(Mode))
def test_dispatch_does_what_the_resolved_mode_says_of_each_phase(mode, max_num_reqs, query_len):
    config = GraphConfig(
        mode=mode.value, sizes=(8, 16), max_size=16, max_num_reqs=max_num_reqs, uniform_query_lens=(query_len,)
    )
    num_reqs = None if max_num_reqs is None else 2
    is_decode = {Phase.DECODE: None if num_reqs is None else query_len, Phase.MIXED: None}
    for support, num_loras, phase in itertools.product(CaptureSupport, (0, 2), Phase):
        live = LiveBatch(
            num_tokens=2 * query_len,
            num_reqs=num_reqs,
            uniform_query_len=is_decode[phase],
            num_active_loras=num_loras,
        )
        decision = preview(live, config, support=support)
        asked = {"support": support, "device_type": "cuda", "num_active_loras": num_loras}
        resolved = resolve_mode(ModeRequest.of(config, **asked))
        assert decision.runtime_mode is resolved.runtime_mode(phase), (support, num_loras, phase)
        if num_loras and mode is not Mode.NONE:
            assert decision.reason is Reason.LORA and "adapters" in resolved.reason
