"""The FlashInfer backend: decode of one token a request runs inside full graphs, all else in breaks or eagerly.

Not more, because a plan for a graph fixes the rows of each request: only single-token decode has one layout a bucket.
`flashinfer` is imported when memory is reserved, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from ostinato.engine.attention.backend import AttentionShape
from ostinato.engine.attention.flashinfer.plans import StepPlans
from ostinato.engine.attention.flashinfer.support import check_support
from ostinato.engine.attention.flashinfer.warm_up import run_all_kernels
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache, by_slot
from ostinato.errors import RuntimeStateError
from ostinato.runtime.keys import CaptureSupport

__all__ = ["FlashInferAttention"]

_Write = Callable[[Tensor, Tensor, LayerCache, AttentionMetadata], None]


class FlashInferAttention:
    """A `PlanningAttentionBackend`. Needs 16-bit dtypes and heads of 64, 128 or 256.

    Args:
        use_pdl: let FlashInfer's kernels start while the kernel before them ends (Hopper and newer).
    """

    name = "flashinfer"
    capture_support = CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE
    fuses_rotary = False

    def __init__(self, *, use_pdl: bool = False) -> None:
        self._use_pdl = use_pdl
        self._plans: StepPlans | None = None
        self._write: _Write = _write_by_index

    @property
    def workspace_bytes(self) -> int:
        """See `AttentionBackend.workspace_bytes`."""
        return 0 if self._plans is None else self._plans.num_bytes

    def reserve(self, shape: AttentionShape) -> None:
        """See `PlanningAttentionBackend.reserve`."""
        check_support(shape)
        self._plans = StepPlans(shape, use_pdl=self._use_pdl)
        if shape.device.type == "cuda" and find_spec("triton") is not None:
            from ostinato.engine.attention.triton.write import launch_write

            self._write = launch_write

    @torch.inference_mode()
    def plan_step(
        self,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Tensor,
        graph_num_reqs: int | None,
    ) -> None:
        """See `PlanningAttentionBackend.plan_step`."""
        self._require().plan(query_lens, seq_lens, block_tables, graph_num_reqs)

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
        """See `AttentionBackend.write_kv`. Slot 0 keeps what a padded row left there: nobody reads it."""
        self._write(k, v, cache, metadata)

    def attend(self, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
        """See `AttentionBackend.attend`; runs what `plan_step` planned."""
        self._require().run(q, out, cache, scale, is_for_graph=metadata.host_seq_lens is None)

    def warm_up(self, shape: AttentionShape) -> None:
        """See `AttentionBackend.warm_up`. The first run on a machine compiles, which takes a minute or so."""
        if self._plans is None:
            self.reserve(shape)
        run_all_kernels(self, shape)

    def _require(self) -> StepPlans:
        if self._plans is None:
            raise RuntimeStateError("no memory was reserved for plans", fix="call reserve(shape) first")
        return self._plans


def _write_by_index(k: Tensor, v: Tensor, cache: LayerCache, metadata: AttentionMetadata) -> None:
    slots = metadata.slot_mapping[: k.shape[0]]
    for pages, rows in ((cache.key, k), (cache.value, v)):
        by_slot(pages).index_copy_(0, slots, rows)
