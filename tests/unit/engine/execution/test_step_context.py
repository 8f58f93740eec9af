"""What attention is told: static tensors in a full graph, live sizes elsewhere, the null page when made up."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.execution.step_context import graph_metadata, live_metadata, made_up_metadata
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.runtime import GraphKey, RuntimeMode


def slots(num_tokens: int, num_reqs: int, width: int = 8) -> dict[str, torch.Tensor]:
    return {
        "slot_mapping": torch.arange(num_tokens),
        "block_tables": torch.arange(num_reqs * width, dtype=torch.int32).view(num_reqs, width),
        "seq_lens": torch.arange(num_reqs, dtype=torch.int32),
        "query_start": torch.arange(num_reqs + 1, dtype=torch.int32),
    }


def test_a_full_graph_sees_the_static_tensors_and_no_host_values() -> None:
    key = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4, num_reqs=4, uniform_query_len=1, kv_tier=9)
    given = slots(4, 4)
    metadata = graph_metadata(key, given, page_size=4)
    assert metadata.host_query_lens is None and metadata.host_seq_lens is None
    assert (metadata.num_tokens, metadata.uniform_query_len) == (4, 1)
    assert metadata.seq_lens is given["seq_lens"] and metadata.slot_mapping is given["slot_mapping"]
    assert metadata.block_tables.shape == (4, 3)  # 9 tokens lie in 3 pages
    assert metadata.block_tables.data_ptr() == given["block_tables"].data_ptr()


def test_without_tiers_the_table_is_whole() -> None:
    key = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=8, num_reqs=4)
    metadata = graph_metadata(key, slots(8, 4), page_size=4)
    assert metadata.block_tables.shape == (4, 8) and metadata.uniform_query_len is None


def test_a_live_step_is_cut_to_its_sizes() -> None:
    requests = [Request(request_id=str(i), prompt_token_ids=[0] * 20) for i in range(2)]
    items = (ScheduledRequest(requests[0], 9, 1, False, False), ScheduledRequest(requests[1], 0, 5, False, False))
    given = slots(8, 4)
    metadata = live_metadata(ScheduledBatch(items), given, page_size=4)
    assert (metadata.num_tokens, metadata.num_reqs, metadata.uniform_query_len) == (6, 2, None)
    assert metadata.host_query_lens == (1, 5) and metadata.host_seq_lens == (10, 5)
    assert metadata.block_tables.shape == (2, 3)
    assert metadata.query_start.tolist() == [0, 1, 2]


def test_one_token_prompts_are_no_decode() -> None:
    """PITFALL 15: what they are is in their state, not in their shape."""
    items = tuple(
        ScheduledRequest(Request(request_id=str(i), prompt_token_ids=[1]), 0, 1, True, False) for i in range(3)
    )
    assert live_metadata(ScheduledBatch(items), slots(4, 4), page_size=4).uniform_query_len is None


@pytest.mark.parametrize(("num_tokens", "lengths"), [(1, (1,)), (20, (20,)), (21, (20, 1)), (60, (20, 20, 20))])
def test_made_up_batches_hold_their_tokens(num_tokens: int, lengths: tuple[int, ...]) -> None:
    metadata = made_up_metadata(num_tokens, max_model_len=20, page_size=4, device=torch.device("cpu"))
    assert metadata.host_query_lens == metadata.host_seq_lens == lengths
    assert metadata.query_start.tolist()[-1] == metadata.num_tokens == num_tokens
    assert not metadata.slot_mapping.any() and not metadata.block_tables.any()
    assert metadata.block_tables.shape[1] * 4 >= max(lengths)
