"""Rows 26 and 27: the largest bucket is too small for the peak, or the next one much too large for the step."""

from __future__ import annotations

from itertools import pairwise

import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["COSTLY_BUCKET", "PEAK_ABOVE_BUCKETS"]

_PEAK = 33
_LIVE, _FAR_BUCKET = 4, 10


class _Counting:
    """Counts, in its result, the rows that it was run on."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 0 + 1).sum(0, keepdim=True).expand(x.shape[0])


def _protected_peak(device: str) -> Outcome:
    """By default the peak is a bucket; where the user's sizes end below it, a counter says so."""
    example = torch.ones(_PEAK, device=device)
    modes = []
    for sizes in (None, (32,)):
        config = GraphConfig(sizes=sizes, max_size=_PEAK)
        with Graphed(lambda x: x + 1, example=(example,), config=config) as graphed:
            graphed.warm_up()
            graphed.capture()
            graphed(example)
            modes.append((dict(graphed.counters.by_runtime_mode), dict(graphed.counters.by_reason)))
    return [({"FULL": 1}, {"EXACT": 1}), ({"EAGER": 1}, {"OVER_LARGEST": 1})], modes


def _unprotected_peak(device: str) -> Outcome:
    """Powers of two up to the most that is configured, and a quiet fall to eager above."""
    num_replays = 0
    with bare_backend(device) as backend:
        sizes = [1 << n for n in range(_PEAK.bit_length())]
        inputs = {size: torch.ones(size, device=device) for size in sizes if size <= _PEAK}
        graphs = {size: record(backend, lambda size=size: inputs[size] + 1)[0] for size in inputs}  # type: ignore[misc]
        for _ in range(3):
            bucket = min((size for size in graphs if size >= _PEAK), default=None)
            if bucket is not None:
                graphs[bucket].replay()
                num_replays += 1
    return 3, num_replays


def _protected_cost(device: str) -> Outcome:
    """A limit refuses a bucket that is far away; the default ladder has none."""
    example = torch.ones(_FAR_BUCKET, device=device)
    config = GraphConfig(sizes=(_FAR_BUCKET,), max_padding=2.0, outputs="view")
    with Graphed(_Counting(), example=(example,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        got = int(graphed(torch.ones(_LIVE, device=device))[0].item())
        reasons = dict(graphed.counters.by_reason)
    with Graphed(_Counting(), example=(torch.ones(1024, device=device),)) as graphed:
        sizes = sorted(key.num_tokens for key in graphed.keys)
        is_dense = all(later <= 2 * earlier for earlier, later in pairwise(sizes))
    return (_LIVE, {"PADDING_COST": 1}, True), (got, reasons, is_dense)


def _unprotected_cost(device: str) -> Outcome:
    static = torch.ones(_FAR_BUCKET, device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _Counting()(static))
        graph.replay()
        return _LIVE, int(out[0].item())


PEAK_ABOVE_BUCKETS = Fault(
    row=26,
    title="the largest live size lies just above the largest bucket: the peak always falls to eager, silently",
    source="vllm#40734, #57355, sglang#33483",
    protection="a `GraphConfig`'s default ladder ends at the largest step; above an engine's, and the user's own "
    "sizes, steps count as OVER_LARGEST",
    cost="none",
    plant=Plant(protected=_protected_peak, unprotected=_unprotected_peak),
)
COSTLY_BUCKET = Fault(
    row=27,
    title="a bucket 2.5x too large costs more than eager",
    source="sglang#31487",
    protection="default buckets lie at most twice apart; `max_padding` refuses a far one (PADDING_COST); `qualify` "
    "warns of a replay that is slower than eager",
    cost="one comparison when a size is first met",
    plant=Plant(protected=_protected_cost, unprotected=_unprotected_cost),
)
