"""Rows 11 and 14: padded rows of a step write into a paged cache.

The cache is one number a slot, page 0 is the null page. A step stores ``values`` at ``slot_mapping``; the
bucket has more rows than the step, and a padded row is executed like any other.
"""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed, Slot
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["PADDED_KV_WRITE", "STALE_INDEX_TAIL"]

_PAGE_SIZE, _NUM_PAGES, _BUCKET = 4, 4, 4
_NUM_SLOTS = _PAGE_SIZE * _NUM_PAGES
_Step = tuple[list[int], list[float]]  # slots, values

# A request owns page 1 and fills it, frees it, and another one takes it; meanwhile a third one decodes alone.
_FILL_PAGE_1: _Step = ([4, 5, 6, 7], [1.0, 2.0, 3.0, 4.0])
_TAKE_PAGE_1: _Step = ([4, 5, 6, 7], [60.0, 70.0, 80.0, 90.0])
_DECODE_IN_PAGE_2: _Step = ([8], [5.0])


class _Cache:
    def __init__(self, device: str) -> None:
        self.slots = torch.zeros(_NUM_SLOTS, device=device)

    def store(self, slot_mapping: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.slots[slot_mapping] = values
        return values + 0


def _tensors(step: _Step, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    slots, values = step
    return torch.tensor(slots, device=device), torch.tensor(values, device=device)


def _expected(steps: list[_Step], device: str) -> torch.Tensor:
    cache = _Cache(device)
    for step in steps:
        cache.store(*_tensors(step, device))
    return cache.slots


_SLOTS = {
    # Padded rows store into slot 0, in the null page. A tail that could be another page's slot is refused.
    "slot_mapping": Slot(shape=(None,), dtype=torch.int64, tail="zero", valid_range=(0, _NUM_SLOTS)),
    "values": Slot(shape=(None,), dtype=torch.float32),
}


def _protected(device: str) -> Outcome:
    """All steps through graphs, but for the take-over, which another instance of the program does."""
    cache = _Cache(device)
    with Graphed(cache.store, slots=_SLOTS, device=device, config=GraphConfig(sizes=(_BUCKET,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(*_tensors(_FILL_PAGE_1, device))
        cache.store(*_tensors(_TAKE_PAGE_1, device))
        graphed(*_tensors(_DECODE_IN_PAGE_2, device))
        assert graphed.counters.by_runtime_mode == {"FULL": 2}
    expected = _expected([_FILL_PAGE_1, _TAKE_PAGE_1, _DECODE_IN_PAGE_2], device)
    return expected[_PAGE_SIZE:], cache.slots[_PAGE_SIZE:]


def _unprotected(device: str, steps: list[_Step], *, pads: int | None, first_live: int) -> Outcome:
    """``pads``: the slot that padded rows get, or None to leave what the last step left."""
    cache = _Cache(device)
    slot_mapping = torch.zeros(_BUCKET, dtype=torch.int64, device=device)
    values = torch.zeros(_BUCKET, device=device)
    with bare_backend(device) as backend:
        graph, _ = record(backend, lambda: cache.store(slot_mapping, values))
        cache.slots.zero_()
        for step in steps:
            slots, live = _tensors(step, device)
            if step is _TAKE_PAGE_1:
                cache.store(slots, live)
                continue
            slot_mapping[: len(slots)] = slots
            values[: len(live)] = live
            if pads is not None:
                slot_mapping[len(slots) :] = pads
                values[len(live) :] = 0
            graph.replay()
    return _expected(steps, device)[first_live:], cache.slots[first_live:]


PADDED_KV_WRITE = Fault(
    row=11,
    title="padded rows write into live KV pages",
    source="tokenspeed#969",
    protection="padded rows write into the null page, and an index slot must declare a tail that is safe",
    cost="one page of cache",
    plant=Plant(
        protected=_protected,
        # No page is set aside: slot 0 is a request's own.
        unprotected=lambda device: _unprotected(
            device, [([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]), _DECODE_IN_PAGE_2], pads=0, first_live=0
        ),
    ),
)
STALE_INDEX_TAIL = Fault(
    row=14,
    title="stale padded tail of an index buffer left from a larger batch",
    source="sglang#24361, #10892",
    protection="an index slot may not keep its tail: every step rewrites it",
    cost="a fill of the padded rows a step",
    plant=Plant(
        protected=_protected,
        unprotected=lambda device: _unprotected(
            device, [_FILL_PAGE_1, _TAKE_PAGE_1, _DECODE_IN_PAGE_2], pads=None, first_live=_PAGE_SIZE
        ),
    ),
)
