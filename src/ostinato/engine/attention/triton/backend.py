"""The Triton backend: which kernel runs for which batch, and warming all of them up.

Nothing is read on the host and every grid follows from padded sizes, so any batch may be in a full graph.
"""

from __future__ import annotations

from torch import Tensor

from ostinato.engine.attention.backend import AttentionShape
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.triton.configs import MAX_DECODE_ROWS, next_power_of_2
from ostinato.engine.attention.triton.decode import launch_decode
from ostinato.engine.attention.triton.fused_decode import launch_fused_decode
from ostinato.engine.attention.triton.varlen import launch_varlen
from ostinato.engine.attention.triton.warm_up import run_all_kernels
from ostinato.engine.attention.triton.workspace import SplitWorkspace
from ostinato.engine.attention.triton.write import launch_rotary_write, launch_write
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime.keys import CaptureSupport

__all__ = ["TritonAttention"]


class TritonAttention:
    """A `FusedAttentionBackend` of Triton kernels. Head sizes: powers of two, 32 to 256.

    Args:
        use_pdl: launch single-token decode early (`programmatic_launch`) where the device can.
    """

    name = "triton"
    capture_support = CaptureSupport.ALWAYS
    fuses_rotary = True

    def __init__(self, *, use_pdl: bool = True) -> None:
        self._use_pdl = use_pdl
        self._workspace = SplitWorkspace()

    @property
    def workspace_bytes(self) -> int:
        """See `AttentionBackend.workspace_bytes`."""
        return self._workspace.num_bytes

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
        """See `AttentionBackend.write_kv`."""
        launch_write(k, v, cache, metadata)

    def attend(self, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
        """See `AttentionBackend.attend`. ``q`` may be ``out``."""
        self._attend(q, out, cache, metadata, scale, new=None)

    def rotary_attend(
        self,
        qkv: Tensor,
        rotary: Tensor,
        out: Tensor,
        cache: LayerCache,
        metadata: AttentionMetadata,
        scale: float,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> None:
        """See `FusedAttentionBackend.rotary_attend`."""
        live = metadata.num_tokens
        if metadata.uniform_query_len == 1:
            launch_fused_decode(
                qkv, rotary, out, cache, metadata, scale, q_norm, k_norm, eps, self._workspace, use_pdl=self._use_pdl
            )
            _zero_past(out, live)
            return
        # Of ``qkv`` no slices are made: in a break each is paid for in every layer of every step.
        key = cache.key
        _, _, num_kv_heads, head_dim = key.shape
        k = qkv.new_empty((live, num_kv_heads * head_dim), dtype=key.dtype)
        # `out` holds the rotated queries until attention overwrites them.
        launch_rotary_write(qkv, rotary, out, k, cache, metadata, q_norm, k_norm, eps)
        # What the cache would round is read back from it, so that later steps see the same values.
        new = (k, qkv) if qkv.dtype == key.dtype else None
        self._attend(out, out, cache, metadata, scale, new=new)

    def _attend(
        self,
        q: Tensor,
        out: Tensor,
        cache: LayerCache,
        metadata: AttentionMetadata,
        scale: float,
        *,
        new: tuple[Tensor, Tensor] | None,
    ) -> None:
        query_len = metadata.uniform_query_len
        if query_len is not None:
            padded_group = next_power_of_2(out.shape[1] // cache.num_kv_heads)
            if query_len * padded_group <= MAX_DECODE_ROWS:
                launch_decode(q, out, cache, metadata, scale, query_len, self._workspace)
                _zero_past(out, metadata.num_tokens)
                return
        launch_varlen(q, out, cache, metadata, scale, new)

    def warm_up(self, shape: AttentionShape) -> None:
        """See `AttentionBackend.warm_up`."""
        run_all_kernels(self, shape)


def _zero_past(out: Tensor, live: int) -> None:
    """Decode kernels write the rows of requests alone."""
    if live < out.shape[0]:
        out[live:].zero_()
