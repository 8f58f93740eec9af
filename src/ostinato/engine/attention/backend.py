"""The Protocols that an attention backend fulfils, and the facts that its kernels specialise on.

A backend states which batches it can run inside a full graph (`capture_support`); the runtime resolves the
mode against the weakest one. Rows of ``out`` that belong to no request come out as zeros, whatever the
padded rows of ``q`` hold. `FusedAttentionBackend` is for backends that also take over what comes just
before: QK norm and rotary embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime.keys import CaptureSupport

__all__ = ["AttentionBackend", "AttentionShape", "FusedAttentionBackend"]


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """What attention kernels are compiled for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    """Tokens a page."""
    dtype: torch.dtype
    device: torch.device
    has_qk_norm: bool = False
    uniform_query_lens: tuple[int, ...] = (1,)
    """Rows a request of the uniform batches that serving will run."""


class AttentionBackend(Protocol):
    """How keys and values are written and attended to."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    @property
    def capture_support(self) -> CaptureSupport:
        """Which batches run inside a full graph."""
        ...

    @property
    def fuses_rotary(self) -> bool:
        """Whether it is a `FusedAttentionBackend`."""
        ...

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
        """Store each row's key and value at its slot.

        Args:
            k: [num_tokens, num_kv_heads, head_dim]; rows may be strided.
            v: like ``k``.
        """
        ...

    def attend(self, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
        """Causal attention of each request's rows over its whole context, into ``out``.

        Args:
            q: [num_tokens, num_heads, head_dim]; rows may be strided.
            out: [num_tokens, num_heads, head_dim], contiguous; written in place.
            scale: factor on the scores.
        """
        ...

    def warm_up(self, shape: AttentionShape) -> None:
        """Compile and load everything that serving ``shape`` needs, so that a capture never does."""
        ...


class FusedAttentionBackend(AttentionBackend, Protocol):
    """A backend whose kernels also apply QK norm and rotary embedding and write the cache."""

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
        """`write_kv` and `attend` on the merged projection, before rotation.

        Args:
            qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
            rotary: [num_tokens, head_dim] float32: cosines, then sines, of each row's position.
            out: [num_tokens, num_heads, head_dim], contiguous; written in place.
            q_norm: [head_dim] weight of the RMS norm of each query head, or None.
            k_norm: the same for keys.
            eps: of both norms.
        """
        ...
