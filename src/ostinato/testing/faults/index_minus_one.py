"""Row 12: slot -1, "no slot", is used as an index and overwrites the last one."""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError
from ostinato.runtime import GraphConfig, Graphed, Slot
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["INDEX_MINUS_ONE"]

_NUM_SLOTS, _BUCKET = 8, 4


class _Cache:
    """One number a slot; the last slot is a live request's."""

    def __init__(self, device: str) -> None:
        self.slots = torch.zeros(_NUM_SLOTS, device=device)

    def store(self, slot_mapping: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.slots[slot_mapping] = values
        return values + 0


def _protected(device: str) -> Outcome:
    cache = _Cache(device)
    slots = {
        "slot_mapping": Slot(shape=(None,), dtype=torch.int64, tail="fill", fill=-1, valid_range=(0, _NUM_SLOTS)),
        "values": Slot(shape=(None,), dtype=torch.float32),
    }
    with Graphed(cache.store, slots=slots, device=device, config=GraphConfig(sizes=(_BUCKET,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        cache.slots[-1] = 9.0
        graphed(torch.tensor([3], device=device), torch.tensor([5.0], device=device))
        return _expected(device), cache.slots


def _expected(device: str) -> torch.Tensor:
    expected = torch.zeros(_NUM_SLOTS, device=device)
    expected[3], expected[-1] = 5.0, 9.0
    return expected


def _unprotected(device: str) -> Outcome:
    cache = _Cache(device)
    slot_mapping = torch.full((_BUCKET,), -1, device=device)
    values = torch.zeros(_BUCKET, device=device)
    with bare_backend(device) as backend:
        graph, _ = record(backend, lambda: cache.store(slot_mapping, values))
        cache.slots[-1] = 9.0
        slot_mapping[0], values[0] = 3, 5.0
        graph.replay()
    return _expected(device), cache.slots


INDEX_MINUS_ONE = Fault(
    row=12,
    title="slot -1 used as an index overwrites the last slot",
    source="vllm#43810",
    protection="an index slot declares its valid range, and a tail outside of it is refused",
    cost="one comparison at start",
    caught_by=ConfigError,
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
