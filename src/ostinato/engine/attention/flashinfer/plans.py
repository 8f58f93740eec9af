"""The planned step: one FlashInfer wrapper for each decode bucket, one for all other steps, and their fixed memory.

What a graph bakes in never changes or moves: the workspaces and page lists are allocated once, and a plan for a
bucket whose launch differs from the first one is refused (PITFALLS: workspace that moves, frozen split counts).

Overlapped steps: the plan of step n + 1 is made while step n runs. What it writes on the device is copied on the
current stream, so it lands after step n's kernels. What it copies from is pinned memory, ours and FlashInfer's; it
is rewritten only after an event recorded behind the last plan's copies (PITFALLS: pinned buffer rewritten while its
copy is pending). Those copies lie in front of step n's kernels, so the wait is for step n - 1 at most.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.engine.attention.backend import AttentionShape
from ostinato.engine.attention.flashinfer.page_lists import PageLists
from ostinato.engine.attention.flashinfer.support import uses_tensor_cores
from ostinato.engine.attention.flashinfer.workspace import float_workspace_bytes, int_workspace_bytes
from ostinato.engine.kvcache import LayerCache
from ostinato.errors import FrozenValueError, RuntimeStateError
from ostinato.runtime.breaks import is_recording, jit_mark

__all__ = ["StepPlans"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bucket:
    """A decode wrapper whose graph may be replayed with any contexts of up to its number of requests.

    It has work lists of its own, so that a replay without its plan is at least consistent with its own last one.
    The first plan is FlashInfer's full one. Later ones are its `fast_decode_plan`, which leaves the copies to the
    buffers to us, and which walks no tensor in Python (half a millisecond of a full plan at 256 requests).
    """

    wrapper: Any
    page_start: Tensor
    last_page_lens: Tensor


class StepPlans:
    """Plans steps and runs the attention of the planned one.

    Args:
        shape: what the kernels are compiled for, and the limits of a step.
        use_pdl: let a kernel start while the one before it ends.
    """

    def __init__(self, shape: AttentionShape, *, use_pdl: bool) -> None:
        import flashinfer

        self._api = flashinfer
        self._shape = shape
        self._use_pdl = use_pdl
        device = shape.device
        self._is_cuda = device.type == "cuda"
        self._num_sms = torch.cuda.get_device_properties(device).multi_processor_count if self._is_cuda else 1
        self._lists = PageLists(
            max_num_reqs=shape.max_num_reqs,
            max_model_len=shape.max_model_len,
            page_size=shape.page_size,
            pin_memory=self._is_cuda,
        )
        # Zeroed, as FlashInfer asks for; shared by all wrappers, since the launches of one stream never overlap.
        num_bytes = float_workspace_bytes(shape, num_sms=self._num_sms)
        self._float_workspace = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.num_bytes = num_bytes
        """Bytes of device memory that all plans take."""
        self._pages = torch.zeros(self._lists.pages.shape, dtype=torch.int32, device=device)
        self.num_bytes += self._pages.nbytes
        self._buckets: dict[int, _Bucket] = {}
        self._launches: dict[int, tuple[int, ...]] = {}
        self._other_wrapper = self._make_other_wrapper()
        self._copied: torch.cuda.Event | None = None
        self._wrapper: Any = None
        self._num_rows = 0
        self._is_for_graph = False

    def plan(
        self, query_lens: Sequence[int], seq_lens: Sequence[int], block_tables: Tensor, graph_num_reqs: int | None
    ) -> None:
        """See `PlanningAttentionBackend.plan_step`.

        Raises:
            RuntimeStateError: a graph is being recorded.
            FrozenValueError: the plan does not fit the launch that the bucket's graph holds.
        """
        if is_recording():
            raise RuntimeStateError(
                "a step was planned inside a capture; a replay would go on with the captured plan",
                fix="plan before the capture and before each replay",
            )
        if self._copied is not None:
            self._copied.synchronize()
        self._wrapper = None  # until the plan stands
        num_reqs = len(seq_lens) if graph_num_reqs is None else graph_num_reqs
        num_entries = self._lists.fill(query_lens, seq_lens, block_tables, num_reqs)
        pages = self._pages[:num_entries]
        pages.copy_(self._lists.pages[:num_entries], non_blocking=True)
        try:
            if graph_num_reqs is None:
                self._plan_other(query_lens, num_reqs, pages)
            else:
                self._plan_for_graph(graph_num_reqs, pages)
        finally:
            if self._is_cuda:
                self._copied = self._copied or torch.cuda.Event()
                self._copied.record()
        self._is_for_graph = graph_num_reqs is not None
        self._num_rows = sum(query_lens) if graph_num_reqs is None else graph_num_reqs

    def run(self, q: Tensor, out: Tensor, cache: LayerCache, scale: float, *, is_for_graph: bool) -> None:
        """Attention of the planned step into ``out``; reads nothing on the host that may change.

        Args:
            is_for_graph: whether these rows are those of a full graph, padded ones included.

        Raises:
            RuntimeStateError: the planned step is another one.
        """
        if self._wrapper is None or is_for_graph is not self._is_for_graph or q.shape[0] != self._num_rows:
            raise RuntimeStateError(
                "attention runs a step that was not planned",
                fix="call plan_step before each run outside a graph and before each replay",
                planned_rows=self._num_rows,
                rows=q.shape[0],
            )
        kernel = "decode" if is_for_graph and not uses_tensor_cores(self._shape) else "prefill"
        jit_mark(f"flashinfer {kernel}[{q.dtype},{q.shape[1]},{cache.num_kv_heads},{cache.head_dim}]")
        # Planned with a scale of 1: FlashInfer multiplies it by this one.
        self._wrapper.run(q, (cache.key, cache.value), q_scale=scale, out=out, enable_pdl=self._use_pdl)

    def _plan_for_graph(self, num_reqs: int, pages: Tensor) -> None:
        shape, lists = self._shape, self._lists
        page_start, last_page_lens = lists.page_start[: num_reqs + 1], lists.last_page_lens[:num_reqs]
        bucket = self._buckets.get(num_reqs)
        if bucket is None:
            bucket = self._make_bucket(num_reqs)
            plan = bucket.wrapper.plan
        else:
            bucket.page_start.copy_(page_start, non_blocking=True)
            bucket.last_page_lens.copy_(last_page_lens, non_blocking=True)
            plan = functools.partial(self._api.fast_decode_plan, bucket.wrapper)
        plan(
            page_start,
            pages,
            last_page_lens,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
            sm_scale=1.0,
        )
        self._buckets[num_reqs] = bucket  # only now: fast plans build on a full one
        launch = tuple(int(value) for value in getattr(bucket.wrapper, "_plan_info", None) or ())
        if self._launches.setdefault(num_reqs, launch) != launch:
            raise FrozenValueError(
                f"FlashInfer planned another launch for {num_reqs} requests than the captured one",
                fix="report this with the version of flashinfer-python; attention='triton' has no such limit",
                captured=self._launches[num_reqs],
                planned=launch,
            )
        self._wrapper = bucket.wrapper

    def _plan_other(self, query_lens: Sequence[int], num_reqs: int, pages: Tensor) -> None:
        shape, lists = self._shape, self._lists
        self._other_wrapper.plan(
            lists.query_start[: num_reqs + 1],
            lists.page_start[: num_reqs + 1],
            pages,
            lists.last_page_lens[:num_reqs],
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            causal=True,
            max_token_per_sequence=max(query_lens),
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
            sm_scale=1.0,
        )
        self._wrapper = self._other_wrapper

    def _make_bucket(self, num_reqs: int) -> _Bucket:
        page_start, last_page_lens = (
            torch.zeros(size, dtype=torch.int32, device=self._shape.device) for size in (num_reqs + 1, num_reqs)
        )
        wrapper = self._api.BatchDecodeWithPagedKVCacheWrapper(
            self._float_workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=uses_tensor_cores(self._shape),
            paged_kv_indptr_buffer=page_start,
            paged_kv_indices_buffer=self._pages,
            paged_kv_last_page_len_buffer=last_page_lens,
        )
        self.num_bytes += page_start.nbytes + last_page_lens.nbytes
        self._shrink(wrapper, num_reqs=num_reqs, num_tokens=num_reqs)
        return _Bucket(wrapper=wrapper, page_start=page_start, last_page_lens=last_page_lens)

    def _make_other_wrapper(self) -> Any:
        # FA2 by name: the tensor-core module of decode serves here too, and plans in the memory computed for it.
        wrapper = self._api.BatchPrefillWithPagedKVCacheWrapper(self._float_workspace, "NHD", backend="fa2")
        self._shrink(wrapper, num_reqs=self._shape.max_num_reqs, num_tokens=self._shape.max_num_tokens)
        return wrapper

    def _shrink(self, wrapper: Any, *, num_reqs: int, num_tokens: int) -> None:
        """Replace the 8 MiB that FlashInfer takes for work lists, twice for each wrapper, by what they need."""
        num_bytes = int_workspace_bytes(self._shape, num_reqs=num_reqs, num_tokens=num_tokens, num_sms=self._num_sms)
        lists = torch.zeros(num_bytes, dtype=torch.uint8, device=self._shape.device)
        wrapper.reset_workspace_buffer(self._float_workspace, lists)
        self.num_bytes += num_bytes
