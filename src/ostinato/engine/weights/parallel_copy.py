"""Copy the tensors of mapped files to where they belong, by a few threads side by side.

A mapped tensor is read when it is copied. One thread waits for the disk, or for the memory of the page cache; several
read several shards at once, or several ranges of one. On CUDA each thread has a stream and two pinned buffers: it fills
one while the device takes the other, so the host never holds more than those. Called when a model is filled or
reloaded; what goes where, and whether it fits, was decided before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import chain, zip_longest
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.engine.weights.progress import ProgressReporter, reporting

__all__ = ["copy_tensors"]

_CHUNK_BYTES: Final = 8 << 20
"""Of the target, that a thread copies at a time: long enough for the full speed of a PCIe link."""
_MAX_THREADS: Final = 8
"""What is pinned stays with torch's allocator: 128 MiB with so many."""

_Pair = tuple[Tensor, Tensor]


def copy_tensors(pairs: Sequence[_Pair], *, progress: ProgressReporter | None = None) -> None:
    """Copy each source, which lies on the CPU, into its target of the same shape, converted where dtypes differ.

    All is there when it returns. If a copy fails, the others end first, and targets are left half filled.

    Args:
        pairs: (target, source), all targets on one device; better in the order in which sources lie in their files.
        progress: told of the sources' bytes; on CUDA the last 16 MiB of a thread may still be on their way.
    """
    chunks = [chunk for target, source in pairs for chunk in _chunks(target, source)]
    total = sum(source.nbytes for _, source in chunks)
    if not chunks:
        return
    num_threads = min(_MAX_THREADS, _num_cores(), len(chunks))
    copier = _CudaCopier(pairs[0][0].device) if pairs[0][0].is_cuda else _CpuCopier()
    with reporting(progress, "loading weights", total, "bytes") as reporter:
        try:
            with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as pool:
                ordered = _side_by_side(chunks, num_threads)
                waiting = {pool.submit(copier.copy, target, source): source.nbytes for target, source in ordered}
                try:
                    for done in as_completed(waiting):
                        done.result()
                        reporter.advance(waiting.pop(done))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            copier.finish()


def _num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunks(target: Tensor, source: Tensor) -> Iterator[_Pair]:
    assert target.shape == source.shape, "was checked"
    if not (target.is_contiguous() and source.is_contiguous()):
        yield target, source
        return
    size = max(1, _CHUNK_BYTES // target.element_size())
    yield from zip(target.view(-1).split(size), source.view(-1).split(size), strict=True)


def _side_by_side(chunks: list[_Pair], num_ranges: int) -> Iterator[_Pair]:
    """The first of each range, the second of each, ...: threads begin in different files, or parts of one."""
    length = -(-len(chunks) // num_ranges)
    ranges = [chunks[start : start + length] for start in range(0, len(chunks), length)]
    return (chunk for chunk in chain.from_iterable(zip_longest(*ranges)) if chunk is not None)


class _CpuCopier:
    """Copies within the host."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy one chunk, on the thread that calls."""
        with torch.inference_mode():
            _copy_on_host(target, source)

    def finish(self) -> None:
        """All is there already."""


class _CudaCopier:
    """Copies to a device; each thread has a lane of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = torch.cuda.current_stream(device)  # whoever had the memory of the targets may still use it there
        self._local = threading.local()
        self._lanes: list[_Lane] = []

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy one chunk on the lane of the thread that calls; it may be on its way when this returns."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            lane: _Lane | None = getattr(self._local, "lane", None)
            if lane is None:
                lane = self._local.lane = _Lane(self._device, self._before)
                self._lanes.append(lane)
            lane.copy(target, source)

    def finish(self) -> None:
        """Wait until the device has taken everything."""
        for lane in self._lanes:
            lane.finish()


class _Lane:
    """One thread's way to the device: a stream, and two pinned buffers in turn."""

    def __init__(self, device: torch.device, before: torch.cuda.Stream) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(before)
        self._buffers = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._taken = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Fill the buffer whose turn it is, once the device has taken what was in it, and let the device take it."""
        if target.nbytes > _CHUNK_BYTES or not source.is_contiguous():  # it has no flat chunks
            with torch.cuda.stream(self._stream):
                target.copy_(source)
            return
        turn = self._turn = 1 - self._turn
        self._taken[turn].synchronize()
        staged = self._buffers[turn][: target.nbytes].view(target.dtype).view(target.shape)
        _copy_on_host(staged, source)
        with torch.cuda.stream(self._stream):
            target.copy_(staged, non_blocking=True)
            self._taken[turn].record(self._stream)

    def finish(self) -> None:
        """Wait until the device has taken what was copied."""
        self._stream.synchronize()


def _copy_on_host(target: Tensor, source: Tensor) -> None:
    if target.dtype == source.dtype and target.is_contiguous() and source.is_contiguous():
        np.copyto(_bytes_of(target), _bytes_of(source))  # by this thread alone: torch would start a team for each
    else:
        target.copy_(source)


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    return tensor.view(-1).view(torch.uint8).numpy()
