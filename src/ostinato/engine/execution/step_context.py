"""What attention is told about a step: from static tensors in a full graph, from the live batch elsewhere.

Three makers of `AttentionMetadata`: inside a full graph (nothing on the host), for a live step (eager, and
the breaks of piecewise graphs), and for the made-up batch with which a key is warmed up and captured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.engine.attention import AttentionMetadata
from ostinato.engine.paging import pages_for
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.runtime import GraphKey

__all__ = ["graph_metadata", "live_metadata", "made_up_metadata"]


def graph_metadata(key: GraphKey, slots: dict[str, Tensor], *, page_size: int) -> AttentionMetadata:
    """Metadata of a full graph for ``key``: the static tensors themselves, which each replay rereads."""
    tables = slots["block_tables"]
    if key.kv_tier is not None:
        tables = tables[:, : pages_for(key.kv_tier, page_size)]
    return AttentionMetadata(
        num_tokens=key.num_tokens,
        slot_mapping=slots["slot_mapping"],
        block_tables=tables,
        seq_lens=slots["seq_lens"],
        query_start=slots["query_start"],
        uniform_query_len=key.uniform_query_len,
    )


def live_metadata(batch: ScheduledBatch, slots: dict[str, Tensor], *, page_size: int) -> AttentionMetadata:
    """Metadata of ``batch`` cut to its live sizes, with the host's copies of the lengths."""
    num_reqs = batch.num_reqs
    seq_lens = tuple(batch.ends)
    return AttentionMetadata(
        num_tokens=batch.num_tokens,
        slot_mapping=slots["slot_mapping"],
        block_tables=slots["block_tables"][:num_reqs, : pages_for(max(seq_lens), page_size)],
        seq_lens=slots["seq_lens"][:num_reqs],
        query_start=slots["query_start"][: num_reqs + 1],
        uniform_query_len=batch.uniform_query_len,
        host_query_lens=tuple(batch.query_lens),
        host_seq_lens=seq_lens,
    )


def made_up_metadata(num_tokens: int, *, max_model_len: int, page_size: int, device: torch.device) -> AttentionMetadata:
    """A prefill of ``num_tokens`` tokens by as few requests as the model length allows, all in the null page."""
    lengths = [max_model_len] * (num_tokens // max_model_len)
    if num_tokens % max_model_len:
        lengths.append(num_tokens % max_model_len)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return AttentionMetadata(
        num_tokens=num_tokens,
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        block_tables=torch.zeros((len(lengths), pages_for(max(lengths), page_size)), dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_start=starts.to(device=device, dtype=torch.int32),
        host_query_lens=tuple(lengths),
        host_seq_lens=tuple(lengths),
    )
