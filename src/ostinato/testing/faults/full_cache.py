"""Row 25: padding needs a page of its own, and once the KV cache is full there is none: eager for good."""

from __future__ import annotations

import torch

from ostinato.engine.paging import NULL_PAGE, PageAllocator
from ostinato.runtime import GraphConfig, Graphed, Slot
from ostinato.testing.faults.bare import bare_backend, record
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["FULL_CACHE"]

_PAGE_SIZE, _NUM_PAGES, _BUCKET, _STEPS = 4, 4, 4, 3
_NUM_SLOTS = _PAGE_SIZE * _NUM_PAGES


class _Cache:
    def __init__(self, device: str) -> None:
        self.slots = torch.zeros(_NUM_SLOTS, device=device)

    def store(self, slot_mapping: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.slots[slot_mapping] = values
        return values + 0


def _full() -> tuple[PageAllocator, list[int]]:
    """All pages belong to requests."""
    allocator = PageAllocator(num_pages=_NUM_PAGES, page_size=_PAGE_SIZE)
    pages = allocator.allocate(allocator.num_usable_pages)
    assert pages is not None
    return allocator, pages


def _live(pages: list[int], device: str) -> torch.Tensor:
    """The newest slot of each request; one row of the bucket is padding."""
    return torch.tensor([page * _PAGE_SIZE for page in pages], device=device)


def _protected(device: str) -> Outcome:
    cache = _Cache(device)
    _, pages = _full()
    slots = {
        "slot_mapping": Slot(
            shape=(None,), dtype=torch.int64, tail="fill", fill=NULL_PAGE * _PAGE_SIZE, valid_range=(0, _NUM_SLOTS)
        ),
        "values": Slot(shape=(None,), dtype=torch.float32),
    }
    with Graphed(cache.store, slots=slots, device=device, config=GraphConfig(sizes=(_BUCKET,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        for _ in range(_STEPS):
            graphed(_live(pages, device), torch.ones(len(pages), device=device))
        return {"FULL": _STEPS}, dict(graphed.counters.by_runtime_mode)


def _unprotected(device: str) -> Outcome:
    """A padded row is a request like any other, with a page."""
    cache = _Cache(device)
    allocator, pages = _full()
    slot_mapping, values = torch.zeros(_BUCKET, dtype=torch.int64, device=device), torch.zeros(_BUCKET, device=device)
    modes = {"FULL": 0, "EAGER": 0}
    with bare_backend(device) as backend:
        graph, _ = record(backend, lambda: cache.store(slot_mapping, values))
        for _ in range(_STEPS):
            page = allocator.allocate(_BUCKET - len(pages))
            if page is None:
                cache.store(_live(pages, device), torch.ones(len(pages), device=device))
            else:
                graph.replay()
            modes["EAGER" if page is None else "FULL"] += 1
    return {"FULL": _STEPS, "EAGER": 0}, modes


FULL_CACHE = Fault(
    row=25,
    title="the padding request cannot be allocated once KV is full: eager for good",
    source="TensorRT-LLM#16072",
    protection="padded rows are no requests: they write into the null page, which is set aside at start",
    cost="one page of cache",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
