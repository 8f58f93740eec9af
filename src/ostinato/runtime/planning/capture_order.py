"""Which graph to capture next while steps are served: the one that the traffic so far would have gained most from.

Pure. Until there is traffic, the largest: one pool is best filled from it down. Called by an engine that captures in
the background.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ostinato.runtime.keys import GraphKey

__all__ = ["next_to_capture"]

StepMs = Callable[[GraphKey | None, GraphKey, int], float | None]

# Where nothing was measured: launches cost an eager step several times what a graph of one row takes, and a row a
# hundredth of it; of the order that a small model has on a large GPU.
_GRAPH, _EAGER, _ROW = 1.0, 6.0, 0.01


def next_to_capture(
    pending: Sequence[GraphKey],
    captured: Collection[GraphKey],
    *,
    decode: Mapping[int, int],
    mixed: Mapping[int, int],
    step_ms: StepMs | None = None,
) -> GraphKey:
    """The pending key that saves most: over all steps that fit it, what each would take less than it takes now.

    Args:
        pending: planned keys without graphs; at least one.
        captured: those with graphs: a step that fits one of its kind takes the smallest, padded; others run eagerly.
        decode: requests of decode steps -> steps so far.
        mixed: tokens of all other steps -> steps so far.
        step_ms: (graph or None for eager, a key of the kind, live size) -> time of the step, None where it was not
            measured; then, and without it, a rough guess counts.
    """

    def cost(graph: GraphKey | None, like: GraphKey, size: int) -> float:
        measured = None if step_ms is None else step_ms(graph, like, size)
        if measured is not None:
            return measured
        return _EAGER + _ROW * size if graph is None else _GRAPH + _ROW * _size(graph)

    def saved(key: GraphKey) -> float:
        steps = decode if key.uniform_query_len is not None else mixed
        others = sorted(
            (k for k in captured if k.kind == key.kind and (k.kv_tier or 0) >= (key.kv_tier or 0)), key=_size
        )
        total = 0.0
        for size, count in steps.items():
            if size <= _size(key):
                now = next((k for k in others if _size(k) >= size), None)
                total += count * max(0.0, cost(now, key, size) - cost(key, key, size))
        return total

    return max(pending, key=lambda key: (saved(key), key.num_tokens, key.kv_tier or 0))


def _size(key: GraphKey) -> int:
    return key.num_tokens if key.uniform_query_len is None or key.num_reqs is None else key.num_reqs
