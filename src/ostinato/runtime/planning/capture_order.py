"""Which graph to capture next while steps are served: the one that the traffic so far would have gained most from.

Pure. Until there is traffic, the largest: one pool is best filled from it down. Called by an engine that captures in
the background.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ostinato.runtime.keys import GraphKey

__all__ = ["next_to_capture"]


def next_to_capture(
    pending: Sequence[GraphKey],
    captured: Collection[GraphKey],
    *,
    decode: Mapping[int, int],
    mixed: Mapping[int, int],
    saved_ms: Callable[[GraphKey], float] | None = None,
) -> GraphKey:
    """The pending key with the largest benefit: steps that it would serve, times what each would save.

    Args:
        pending: planned keys without graphs; at least one.
        captured: those with graphs. A step that a captured bucket of its kind holds gains nothing here.
        decode: requests of decode steps -> steps so far.
        mixed: tokens of all other steps -> steps so far.
        saved_ms: what a step saves by the graph of a key; None: all the same.
    """

    def rank(key: GraphKey) -> tuple[float, int, int]:
        steps = decode if key.uniform_query_len is not None else mixed
        saved = 1.0 if saved_ms is None else max(saved_ms(key), 0.0)
        return _unserved(key, captured, steps) * saved, key.num_tokens, key.kv_tier or 0

    return max(pending, key=rank)


def _unserved(key: GraphKey, captured: Collection[GraphKey], steps: Mapping[int, int]) -> int:
    """Steps that ``key`` would hold and no graph of its kind holds, padded or not."""
    size = _size(key)
    others = [_size(k) for k in captured if k.kind == key.kind and (k.kv_tier or 0) >= (key.kv_tier or 0)]
    largest = max(others, default=0)
    return sum(count for live, count in steps.items() if largest < live <= size)


def _size(key: GraphKey) -> int:
    return key.num_tokens if key.uniform_query_len is None or key.num_reqs is None else key.num_reqs
