"""A stand-in for the `flashinfer` package: the two paged wrappers as its documentation describes them, in torch.

Like the original, a wrapper in graph mode keeps what `plan` was given in the caller's buffers, refuses another batch
size, and plans the same launch for every batch; `run` reads nothing but device tensors there, so a graph may hold it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


class _Wrapper:
    """What both wrappers share."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str, use_cuda_graph: bool) -> None:
        assert kv_layout == "NHD", "the engine's caches lie as NHD"
        assert not float_workspace_buffer.any(), "must be zero for its first use"
        self.is_cuda_graph_enabled = use_cuda_graph
        self.float_workspace = float_workspace_buffer
        self.int_workspace = torch.empty(8 << 20, dtype=torch.uint8)
        self.num_plans = self.num_runs = 0
        self._plan_info: list[int] | None = None
        _made.append(self)

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        assert self._plan_info is None, "offsets of a plan would point into the old buffers"
        self.float_workspace, self.int_workspace = float_workspace_buffer, int_workspace_buffer

    def _attend(
        self, q: Tensor, caches: tuple[Tensor, Tensor], pages: Tensor, seq_lens: Tensor, seen: Tensor, scale: float
    ) -> Tensor:
        """Rows over tokens: q [rows, heads, dim], pages [rows, width], seen [rows] tokens that each row attends to."""
        assert q.dtype == self._dtype and caches[0].dtype == self._dtype, "not what was planned"
        keys, values = (cache[pages.long()].flatten(1, 2) for cache in caches)
        is_seen = torch.arange(keys.shape[1]) < torch.minimum(seen, seq_lens)[:, None]
        group = q.shape[1] // keys.shape[2]
        keys, values = (x.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3) for x in (keys, values))
        values = torch.where(is_seen[..., None, None], values, 0.0)
        scores = torch.einsum("rhd,rkhd->rhk", q, keys) * scale
        weights = torch.where(is_seen[:, None], scores, float("-inf")).softmax(-1)
        return torch.einsum("rhk,rkhd->rhd", torch.where(is_seen[:, None], weights, 0.0), values)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        assert use_cuda_graph, "the stand-in has graph mode only"
        assert paged_kv_indptr_buffer is not None and paged_kv_last_page_len_buffer is not None
        assert paged_kv_indices_buffer is not None
        self.use_tensor_cores = use_tensor_cores
        self.batch_size = len(paged_kv_last_page_len_buffer)
        assert len(paged_kv_indptr_buffer) == self.batch_size + 1
        self.indptr, self.indices = paged_kv_indptr_buffer, paged_kv_indices_buffer
        self.last_page_len = paged_kv_last_page_len_buffer

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float | None = None,
    ) -> None:
        if len(last_page_len) != self.batch_size:
            raise ValueError("The batch size should be fixed in cudagraph mode")
        if len(indices) > len(self.indices):
            raise ValueError("The size of indices should be less than or equal to the allocated buffer")
        assert indptr.device.type == "cpu" and indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert len(indices) == indptr[-1]
        assert (indptr.diff() >= 1).all(), "the planner may overrun its work list where a request has no page"
        self.indptr.copy_(indptr)
        self.last_page_len.copy_(last_page_len)
        self.indices[: len(indices)].copy_(indices)
        self._dtype, self._sm_scale, self._page_size = q_data_type, sm_scale, page_size
        self._width = len(self.indices) // self.batch_size
        self.make_work_lists(num_qo_heads, head_dim)

    def make_work_lists(self, num_qo_heads: int, head_dim: int) -> None:
        self._plan_info = [self.batch_size, num_qo_heads * self.batch_size * head_dim, 1]
        self.num_plans += 1

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, q_scale: float, out: Tensor, enable_pdl: bool
    ) -> Tensor:
        assert q.shape[0] == self.batch_size and out.shape == q.shape
        counts = self.indptr.diff()
        columns = torch.arange(self._width)
        entries = self.indptr[:-1, None] + columns
        pages = torch.where(columns < counts[:, None], self.indices[entries.clamp(max=len(self.indices) - 1)], 0)
        seq_lens = (counts - 1) * self._page_size + self.last_page_len
        assert self._sm_scale is not None
        out.copy_(self._attend(q, paged_kv_cache, pages, seq_lens, seq_lens, self._sm_scale * q_scale))
        self.num_runs += 1
        return out


def fast_decode_plan(
    wrapper: BatchDecodeWithPagedKVCacheWrapper,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    *,
    q_data_type: torch.dtype,
    kv_data_type: torch.dtype,
    sm_scale: float | None = None,
) -> None:
    """A later plan of a wrapper in graph mode: the caller has filled the buffers."""
    assert wrapper._plan_info is not None, "the first plan is a full one"
    if len(last_page_len) != wrapper.batch_size:
        raise ValueError("The batch size should be fixed in cudagraph mode")
    assert (indptr.diff() >= 1).all() and len(indices) == indptr[-1]
    wrapper._sm_scale = sm_scale
    wrapper.make_work_lists(num_qo_heads, head_dim)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout, False)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        max_token_per_sequence: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float | None = None,
    ) -> None:
        assert causal and sm_scale is not None and max_token_per_sequence == qo_indptr.diff().max()
        assert (qo_indptr.diff() >= 0).all() and len(paged_kv_indices) == paged_kv_indptr[-1]
        self._dtype, self._sm_scale = q_data_type, sm_scale
        # Copies: the caller's host lists are rewritten for the next step.
        self._starts: list[int] = qo_indptr.tolist()
        counts = paged_kv_indptr.diff()
        self._seq_lens: list[int] = ((counts - 1) * page_size + paged_kv_last_page_len).tolist()
        self._pages: Sequence[Tensor] = paged_kv_indices.clone().split(counts.tolist())
        self._plan_info = [self._starts[-1]]
        self.num_plans += 1

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, q_scale: float, out: Tensor, enable_pdl: bool
    ) -> Tensor:
        if q.shape[0] != self._starts[-1]:
            raise ValueError("q.shape[0] does not match qo_indptr[-1]")
        for index, (pages, seq_len) in enumerate(zip(self._pages, self._seq_lens, strict=True)):
            rows = slice(self._starts[index], self._starts[index + 1])
            length = rows.stop - rows.start
            seen = seq_len - length + 1 + torch.arange(length)
            tables = pages.expand(length, -1)
            scale = self._sm_scale * q_scale
            out[rows] = self._attend(q[rows], paged_kv_cache, tables, torch.full((length,), seq_len), seen, scale)
        self.num_runs += 1
        return out


_made: list[_Wrapper] = []


@pytest.fixture
def fake_flashinfer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, importable as `flashinfer`, for any dtype and head size; ``made`` lists its wrappers."""
    _made.clear()
    module = ModuleType("flashinfer")
    module.__spec__ = ModuleSpec("flashinfer", None)
    module.__dict__.update(
        made=_made,
        fast_decode_plan=fast_decode_plan,
        BatchDecodeWithPagedKVCacheWrapper=BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper,
    )
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr("ostinato.engine.attention.flashinfer.backend.check_support", lambda shape: None)
    return module
