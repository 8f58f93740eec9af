"""A preview decides as the captured callable does."""

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Slot, preview

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
