"""Copy the tensors of mapped files to where they belong, by a few threads side by side.

A mapped tensor is read when it is copied. One thread waits for the disk, or for the memory of the page cache; several
read several shards at once, or several ranges of one. On CUDA each thread has a stream and two pinned buffers: it fills
one while the device takes the other, so the host never holds more than those. Whoever begins the copies may do other
work meanwhile. Called when a model is filled or reloaded; what goes where, and whether it fits, was decided before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain, zip_longest
from queue import SimpleQueue
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.engine.switching import switching_faster
from ostinato.engine.weights.progress import ProgressReporter, reporting
from ostinato.errors import RuntimeStateError

__all__ = ["TensorCopies", "copy_tensors"]

_CHUNK_BYTES: Final = 8 << 20
"""Of the target, that a thread copies at a time: long enough for the full speed of a PCIe link."""
_MAX_THREADS: Final = 8
"""What is pinned stays with torch's allocator: 128 MiB with so many."""

_Pair = tuple[Tensor, Tensor]
_Copy = Callable[[Tensor, Tensor], None]


def copy_tensors(pairs: Sequence[_Pair], *, progress: ProgressReporter | None = None) -> None:
    """Copy each source, which lies on the CPU, into its target of the same shape, converted where dtypes differ.

    All is there when it returns. If a copy fails, the others end first, and targets are left half filled.

    Args:
        pairs: (target, source), all targets on one device; better in the order in which sources lie in their files.
        progress: told of the sources' bytes; on CUDA the last 16 MiB of a thread may still be on their way.
    """
    TensorCopies(pairs, progress=progress).wait()


class TensorCopies:
    """Copies as of `copy_tensors`, on their way since this was made: `wait` before anybody reads a target, or `close`.

    Targets live until no thread and no device writes them any more, whoever lets go of them. Used by one thread. The
    interpreter changes hands faster until the end, since the threads ask for it between chunks.

    Args:
        pairs: see `copy_tensors`.
        progress: told that it began now, and of the bytes and the end by `wait`; nothing else may report in between.
    """

    def __init__(self, pairs: Sequence[_Pair], *, progress: ProgressReporter | None = None) -> None:
        chunks = [chunk for target, source in pairs for chunk in _chunks(target, source)]
        num_threads = min(_MAX_THREADS, _num_cores(), len(chunks))
        self._left = deque(_side_by_side(chunks, num_threads) if chunks else ())
        self._told: SimpleQueue[int | None] = SimpleQueue()
        """Bytes that were copied; None from each thread at its end."""
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._num_running = 0
        """Threads whose end `wait` has not heard of."""
        self._is_whole = True
        self._held = ExitStack()
        if not chunks:
            return
        try:
            copier = _CudaCopier(pairs[0][0].device) if pairs[0][0].is_cuda else _CpuCopier()
            total = sum(source.nbytes for _, source in chunks)
            self._reporter = self._held.enter_context(reporting(progress, "loading weights", total, "bytes"))
            self._held.enter_context(switching_faster())
            for number in range(num_threads):
                thread = threading.Thread(target=self._work, args=(copier,), name=f"weights-{number}")
                thread.start()
                self._threads.append(thread)
                self._num_running += 1
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Return once all is there; after that at once.

        Raises: what a copy raised.
            RuntimeStateError: it was closed before all was there, or has raised already.
        """
        try:
            while self._num_running:
                told = self._told.get()
                if told is None:
                    self._num_running -= 1
                else:
                    self._reporter.advance(told)
        finally:
            self.close()
        if self._errors:
            self._is_whole = False
            del self._errors[1:]
            raise self._errors.pop()  # kept here it would keep all alive that its traceback knows
        if not self._is_whole:
            raise RuntimeStateError("weights are missing: their copying broke off", fix="load the model again")

    def close(self) -> None:
        """Begin no more copies, and return when those under way have ended. After `wait` there is nothing to do."""
        self._left.clear()
        if self._num_running:
            self._num_running, self._is_whole = 0, False
        try:
            for thread in self._threads:
                thread.join()
        finally:
            self._held.close()

    def _work(self, copier: _Copier) -> None:
        """Of one thread."""
        try:
            with copier.lane() as copy:
                while True:
                    try:
                        target, source = self._left.popleft()
                    except IndexError:
                        break
                    copy(target, source)
                    self._told.put(source.nbytes)
        except BaseException as error:
            self._errors.append(error)
            self._left.clear()
        finally:
            self._told.put(None)


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


class _Copier(Protocol):
    def lane(self) -> AbstractContextManager[_Copy]:
        """How the thread that calls copies a chunk. When the block ends all has arrived."""
        ...


class _CpuCopier:
    """Copies within the host."""

    @contextmanager
    def lane(self) -> Iterator[_Copy]:
        """See `_Copier.lane`."""
        with torch.inference_mode():
            yield _copy_on_host


class _CudaCopier:
    """Copies to a device; each thread has a lane of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = torch.cuda.Event()  # whoever had the memory of the targets may still use it
        self._before.record(torch.cuda.current_stream(device))

    @contextmanager
    def lane(self) -> Iterator[_Copy]:
        """See `_Copier.lane`."""
        stream = torch.cuda.Stream(self._device)
        with torch.inference_mode(), torch.cuda.stream(stream):
            stream.wait_event(self._before)
            try:
                yield _Lane(stream).copy
            finally:
                stream.synchronize()


class _Lane:
    """One thread's way to the device: its stream, which is the current one, and two pinned buffers in turn."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._buffers = [torch.empty(_CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._taken = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Fill the buffer whose turn it is, once the device has taken what was in it, and let the device take it.

        It may be on its way when this returns.
        """
        if target.nbytes > _CHUNK_BYTES or not source.is_contiguous():  # it has no flat chunks
            target.copy_(source)
            return
        turn = self._turn = 1 - self._turn
        self._taken[turn].synchronize()
        staged = self._buffers[turn][: target.nbytes].view(target.dtype).view(target.shape)
        _copy_on_host(staged, source)
        target.copy_(staged, non_blocking=True)
        self._taken[turn].record(self._stream)


def _copy_on_host(target: Tensor, source: Tensor) -> None:
    if target.dtype == source.dtype and target.is_contiguous() and source.is_contiguous():
        np.copyto(_bytes_of(target), _bytes_of(source))  # by this thread alone: torch would start a team for each
    else:
        target.copy_(source)


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    return tensor.view(-1).view(torch.uint8).numpy()
