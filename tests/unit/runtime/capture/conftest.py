"""A made-up caching allocator: pools of segments with blocks, on real host memory, as torch's snapshots show them."""

from __future__ import annotations

import pytest
import torch

GRANULE = 512


class FakeAllocator:
    """Blocks are given out first fit, from segments of ``segment_bytes``; tensors own nothing, so `free` is by hand."""

    ours, others = (0, 1), (0, 0)
    """Ids of pools: one that graphs are captured into, and the one of all else."""
    segment_bytes = 16 * GRANULE

    def __init__(self):
        self._buffers = []
        self.segments = []
        self.num_snapshots = 0

    def snapshot(self):
        self.num_snapshots += 1
        return [{**s, "blocks": [dict(b) for b in s["blocks"]]} for s in self.segments]

    def allocate(self, num_floats, pool=ours):
        """A tensor in ``pool``, made past torch's dispatcher."""
        size = -(-4 * num_floats // GRANULE) * GRANULE
        segment, at = self._find(size, pool) or self._grow(pool)
        free = segment["blocks"][at]
        used = {"address": free["address"], "size": size, "state": "active_allocated"}
        rest = {"address": free["address"] + size, "size": free["size"] - size, "state": "inactive"}
        segment["blocks"][at : at + 1] = [used, rest] if rest["size"] else [used]
        buffer, base = next((b, a) for b, a in self._buffers if a <= used["address"] < a + len(b))
        offset = used["address"] - base
        return torch.frombuffer(buffer, dtype=torch.float32, offset=offset, count=num_floats)

    def free(self, tensor, state="inactive"):
        address = tensor.untyped_storage().data_ptr()
        block = next(b for s in self.segments for b in s["blocks"] if b["address"] == address)
        block["state"] = state

    def _find(self, size, pool):
        for segment in self.segments:
            for at, block in enumerate(segment["blocks"]):
                if segment["segment_pool_id"] == pool and block["state"] == "inactive" and block["size"] >= size:
                    return segment, at
        return None

    def _grow(self, pool):
        buffer = bytearray(self.segment_bytes)
        base = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
        self._buffers.append((buffer, base))
        blocks = [{"address": base, "size": len(buffer), "state": "inactive"}]
        self.segments.append({"address": base, "total_size": len(buffer), "segment_pool_id": pool, "blocks": blocks})
        return self.segments[-1], 0


@pytest.fixture
def allocator():
    return FakeAllocator()
