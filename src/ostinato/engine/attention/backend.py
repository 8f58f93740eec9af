"""The Protocols that an attention backend fulfils, and the facts that its kernels specialise on.

A backend states which batches it can run inside a full graph (`capture_support`); the runtime resolves the
mode against the weakest one. Rows of ``out`` that belong to no request come out as zeros, whatever the
padded rows of ``q`` hold. `FusedAttentionBackend` is for backends that also take over what comes just
before: QK norm and rotary embedding; `PlanningAttentionBackend` for those that need the host's lengths of a
step before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime.keys import CaptureSupport

__all__ = ["AttentionBackend", "AttentionShape", "FusedAttentionBackend", "PlanningAttentionBackend"]


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
    max_num_reqs: int = 1
    """Requests of one step."""
    max_num_tokens: int = 1
    """Rows of one step."""
    max_model_len: int = 1
    """Tokens that a request may hold."""


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
    def workspace_bytes(self) -> int:
        """Device memory that the backend keeps for itself."""
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
        """`write_kv` and `attend` on the first ``metadata.num_tokens`` rows of the merged projection, before rotation.

        Args:
            qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], contiguous, num_rows >= num_tokens.
            rotary: [num_rows, head_dim] float32: cosines, then sines, of each row's position.
            out: [num_rows, num_heads, head_dim], contiguous; written in place, rows past ``num_tokens`` with zeros.
            q_norm: [head_dim] weight of the RMS norm of each query head, or None.
            k_norm: the same for keys.
            eps: of both norms.
        """
        ...


@runtime_checkable
class PlanningAttentionBackend(AttentionBackend, Protocol):
    """A backend that prepares each step on the host, outside of any graph.

    The executor calls `reserve` once, before it measures the memory that is left for the KV cache; and `plan_step`
    for each step once its inputs are on their way to the device and before anything of it runs or is replayed, and
    likewise for the made-up step before each warm-up and each capture of a key.
    """

    def reserve(self, shape: AttentionShape) -> None:
        """Allocate all that `plan_step` writes to; nothing of it grows or moves later.

        Raises:
            ConfigError: the kernels cannot serve ``shape``.
            DeviceUnavailableError: nor this device.
        """
        ...

    def plan_step(
        self,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Tensor,
        graph_num_reqs: int | None,
    ) -> None:
        """Prepare the step that runs next; what it writes on the device is ordered on the current stream.

        Args:
            query_lens: rows of each live request.
            seq_lens: context tokens of each live request, this step's included.
            block_tables: [>= live requests, >= pages of the longest] int32 on the host; not kept.
            graph_num_reqs: requests, padded ones included, of the full graph that the step replays; None elsewhere.
        """
        ...
