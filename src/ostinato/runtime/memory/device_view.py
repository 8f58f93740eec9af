"""What a device's memory is taken by, as far as torch's allocator and the driver tell; what could be given back.

``nvidia-smi`` shows one number. It is live tensors, blocks that the allocator keeps, graph pools, and what lies outside
of the allocator. Pure arithmetic on `torch.cuda.memory_snapshot`, whose fields are described in torch's documentation
"Understanding CUDA Memory Usage". Called by the memory report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["DeviceView"]

_PAGE_BYTES: Final = 2 << 20  # what expandable segments map and unmap
_DEFAULT_POOL: Final = (0, 0)


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """Bytes of one device; all but the last two add up to ``total_bytes``.

    Attributes:
        free_bytes: that nobody has.
        live_bytes: of tensors outside of graph pools.
        cached_bytes: free blocks that the allocator keeps for later tensors.
        graph_pool_bytes: private pools, whether a graph's tensors are live in them or not; kept while graphs live.
        outside_bytes: beside the allocator: contexts, kernels, graph executables, memory mapped by hand, others.
        returned_by_empty_cache_bytes: of the cached ones, those in segments without any live tensor.
        returned_if_expandable_bytes: that ``empty_cache`` would give back beyond, had segments been expandable
            (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``): whole pages within the others.
    """

    total_bytes: int
    free_bytes: int
    live_bytes: int
    cached_bytes: int
    graph_pool_bytes: int
    outside_bytes: int
    returned_by_empty_cache_bytes: int
    returned_if_expandable_bytes: int

    @classmethod
    def of(cls, segments: Iterable[Mapping[str, Any]], *, total_bytes: int, free_bytes: int) -> DeviceView:
        """From a snapshot of one device's segments."""
        live = cached = pools = whole = parts = 0
        for segment in segments:
            size, allocated = int(segment["total_size"]), int(segment["allocated_size"])
            if tuple(segment.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL:
                pools += size
                continue
            live += allocated
            cached += size - allocated
            gaps = [int(block["size"]) for block in segment["blocks"] if block["state"] == "inactive"]
            in_pages = sum(gap // _PAGE_BYTES * _PAGE_BYTES for gap in gaps)
            if sum(gaps) == size:
                whole += size
            elif segment.get("is_expandable", False):
                whole += in_pages
            else:
                parts += in_pages
        reserved = live + cached + pools
        return cls(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            live_bytes=live,
            cached_bytes=cached,
            graph_pool_bytes=pools,
            outside_bytes=max(0, total_bytes - free_bytes - reserved),
            returned_by_empty_cache_bytes=whole,
            returned_if_expandable_bytes=parts,
        )
