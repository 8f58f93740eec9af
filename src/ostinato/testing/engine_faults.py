"""Faults of rows 3, 8, 11 and 13, planted in an engine's own code, for showing that qualification finds them there.

Each is a context manager; engines that are opened and qualified inside have the fault. Rows 8 and 13 lie in torch
attention. The numbers are those of `ostinato.testing.faults`, whose programs know no engine. Used by tests of the
engine, of the command line and on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from ostinato.engine.attention import AttentionMetadata, torch_backend
from ostinato.engine.attention.torch_decode import attend_uniform
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.kvcache import LayerCache
from ostinato.runtime import HostSlots
from ostinato.runtime.nest import map_tensors
from ostinato.runtime.runners import BreakStep

__all__ = ["ENGINE_FAULTS", "baked_page_count", "padding_leak", "stale_break_output", "stray_padded_rows"]


@contextmanager
def stale_break_output() -> Iterator[None]:
    """Row 3: attention leaves its result elsewhere than where the next segment reads."""

    def run(self: BreakStep, num_live: int, num_rows: int) -> None:
        self.point.fn(*map_tensors(self._args, torch.clone), **self._kwargs)

    with mock.patch.object(BreakStep, "run", run):
        yield


@contextmanager
def baked_page_count() -> Iterator[None]:
    """Row 8: attention bounds the context by a number of the host, the most pages of a request in the last batch."""
    seen = SimpleNamespace(pages=1)
    write = BatchWriter.write

    def noting(self: BatchWriter, host: HostSlots, batch: Any) -> Any:
        seen.pages = max(len(item.request.pages) for item in batch.items)
        return write(self, host, batch)

    def bounded(q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, *more: Any) -> None:
        metadata = AttentionMetadata(**{**vars(metadata), "block_tables": metadata.block_tables[:, : seen.pages]})
        attend_uniform(q, out, cache, metadata, *more)

    with (
        mock.patch.object(BatchWriter, "write", noting),
        mock.patch.object(torch_backend, "attend_uniform", bounded),
    ):
        yield


@contextmanager
def stray_padded_rows(slot: Callable[[Mapping[str, Tensor]], int] | None = None) -> Iterator[None]:
    """Row 11: the slots of padded rows point into a page that is live.

    Args:
        slot: where to, given a step's host buffers; by default where the first token of the batch itself goes.
    """
    write = BatchWriter.write

    def stray(self: BatchWriter, host: HostSlots, batch: Any) -> Any:
        to_build = write(self, host, batch)
        host["slot_mapping"][batch.num_tokens :] = int(host["slot_mapping"][0]) if slot is None else slot(host)
        return to_build

    with mock.patch.object(BatchWriter, "write", stray):
        yield


@contextmanager
def padding_leak() -> Iterator[None]:
    """Row 13: attention over nothing is NaN, as where all is masked, and a scale over all rows spreads it."""
    attend = torch_backend.TorchAttention.attend

    def careless(
        self: Any, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float
    ) -> None:
        attend(self, q, out, cache, metadata, scale)
        if metadata.uniform_query_len is not None:
            out.masked_fill_((metadata.seq_lens == 0)[:, None, None], float("nan"))
            out.mul_(out.abs().amax() / out.abs().amax())

    with mock.patch.object(torch_backend.TorchAttention, "attend", careless):
        yield


ENGINE_FAULTS: Final[Mapping[int, Callable[..., AbstractContextManager[None]]]] = {
    3: stale_break_output,
    8: baked_page_count,
    11: stray_padded_rows,
    13: padding_leak,
}
"""Row -> the fault."""
