"""Attention in plain torch, on any device: the reference, and what the CPU uses.

Uniform decode reads nothing on the host, so it may be captured; prefill and mixed batches loop over the
requests by their host lengths and run in a break or in eager. Bitwise deterministic on the CPU.
"""

from __future__ import annotations

from torch import Tensor

from ostinato.engine.attention.backend import AttentionShape
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.torch_decode import attend_uniform
from ostinato.engine.attention.torch_prefill import attend_per_request
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime.keys import CaptureSupport

__all__ = ["TorchAttention"]


class TorchAttention:
    """An `AttentionBackend` made of torch ops."""

    name = "torch"
    capture_support = CaptureSupport.UNIFORM_BATCH
    fuses_rotary = False
    workspace_bytes = 0

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
        """See `AttentionBackend.write_kv`. Slot 0 holds zeros afterwards: `attend_uniform` reads it for "nothing"."""
        slots = metadata.slot_mapping[: k.shape[0]]
        for pages, rows in ((cache.key, k), (cache.value, v)):
            flat = pages.view(-1, pages.shape[2], pages.shape[3])
            flat.index_copy_(0, slots, rows)
            flat[0].zero_()

    def attend(self, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
        """See `AttentionBackend.attend`."""
        if metadata.uniform_query_len is not None:
            attend_uniform(q, out, cache, metadata, scale, metadata.uniform_query_len)
        else:
            attend_per_request(q, out, cache, metadata, scale)

    def warm_up(self, shape: AttentionShape) -> None:
        """Nothing to compile."""
