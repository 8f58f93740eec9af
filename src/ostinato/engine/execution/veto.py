"""Why one batch can take no full graph. Called by the executor, whose dispatcher then says so."""

from __future__ import annotations

from ostinato.engine.scheduler import ScheduledBatch

__all__ = ["why_no_full_graph"]


def why_no_full_graph(batch: ScheduledBatch, *, draws_in_graphs: bool) -> str:
    """The reason, or an empty text.

    Args:
        draws_in_graphs: whether a graph can choose other tokens than the likeliest, see `SamplingHead`.
    """
    if batch.is_plain:
        return ""
    if any(request.logits_processors for request in batch.sampling):
        return "logits processors run on the host"
    if not draws_in_graphs and not all(request.params.takes_likeliest for request in batch.sampling):
        return "without triton a graph can choose the likeliest tokens only"
    return ""
