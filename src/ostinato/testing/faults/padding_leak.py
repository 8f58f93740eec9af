"""Row 13: garbage in padded rows reaches real rows, through a scale that the whole batch shares."""

from __future__ import annotations

import torch

from ostinato.errors import QualificationError
from ostinato.runtime import GraphConfig, Graphed
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["PADDING_LEAK"]

_BUCKET, _LIVE = 4, 3


def _quantise(x: torch.Tensor) -> torch.Tensor:
    """Divides by the largest number of the batch: each row depends on all others."""
    return x / x.abs().amax()


def _protected(device: str, partition: str) -> Outcome:
    example = torch.ones(_BUCKET, 2, device=device)
    config = GraphConfig(sizes=(_BUCKET,))
    if partition:
        config = GraphConfig(mode="piecewise", partition=partition, sizes=(_BUCKET,))
    with Graphed(_quantise, example=(example,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        report = graphed.qualify()
        live = torch.full((_LIVE, 2), 0.5, device=device)
        got = graphed(live)
        # The key is quarantined whether or not anybody checks the report: its steps run eagerly.
        if torch.equal(got, _quantise(live)) and graphed.counters.by_reason == {"QUARANTINED": 1}:
            report.check()
        return _quantise(live), got


def _unprotected(device: str) -> Outcome:
    """The padded row holds what an earlier step left there."""
    static = torch.full((_BUCKET, 2), float("nan"), device=device)
    with bare_backend(device) as backend:
        graph, out = record(backend, lambda: _quantise(static))
        static[:_LIVE] = 0.5
        graph.replay()
        return _quantise(static[:_LIVE]), out[:_LIVE]


PADDING_LEAK = Fault(
    row=13,
    title="NaN or garbage in padded rows leaks into real rows through a reduction, a group scale or an expert sort",
    source="vllm#40047, PR #39593",
    protection="`qualify` poisons padded rows and quarantines a key whose live rows notice; tails of inputs and of "
    "what breaks return are cleared",
    cost="`qualify`: a few eager runs and replays a key, when asked for; clearing: a fill of padded rows a step",
    caught_by=QualificationError,
    caught_when_traced=QualificationError,
    plant=Plant(
        protected=lambda device: _protected(device, ""),
        traced=_protected,
        unprotected=_unprotected,
    ),
)
