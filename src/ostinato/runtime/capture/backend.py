"""The one contract about graphs with a device: `CaptureBackend` and `CapturedGraph`.

Two implementations, `cuda` and `simulated`, pass one conformance suite. XPU and ROCm are torch-level
variants of `cuda`; nothing here forbids them. Runners use this Protocol and never a device API.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ostinato.runtime.capture.executables import ExecutableCounts
from ostinato.runtime.capture.externals import External
from ostinato.runtime.capture.generation import Generation
from ostinato.runtime.capture.generators import GeneratorLog

__all__ = ["BakedCall", "CaptureBackend", "CapturedGraph", "DeviceUsage", "GraphStep", "PoolMemory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Bytes of the pool that this backend's graphs share."""

    reserved_bytes: int
    """What the pool holds, whether a graph uses it or not."""
    num_graphs: int
    """Graphs captured into the pool and still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """Who has taken the device's memory. What a piece of work took is the difference of two."""

    allocator_bytes: int
    """What torch's allocator holds, used or not; when simulated, the graphs' pool."""
    live_bytes: int
    """What tensors lie in, of these."""
    driver_bytes: int
    """What is taken beside it, other processes' included: graph executables, kernels, contexts; 0 when simulated."""


@dataclass(frozen=True, slots=True)
class BakedCall:
    """One op or kernel of a segment with the host values that the capture has frozen in it."""

    op: str
    values: tuple[tuple[str, Any], ...]
    """``(argument, value)``: numbers, strings and layouts of a recorded op; launch sizes of a kernel. Addresses of
    memory that the graph itself owns are left out: they mean nothing."""
    words: tuple[tuple[str, int], ...] = ()
    """``(place, value)`` of the words of a kernel's parameters, bytes that it does not read among them."""


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One recorded call that can be replayed alone, in its turn."""

    op: str
    run: Callable[[], Any]
    written: tuple[torch.Tensor, ...]
    """What the call leaves, to be read before the next one runs."""


class CapturedGraph(Protocol):
    """One recorded segment."""

    num_nodes: int
    """Kernels, copies and fills in the graph; recorded calls when simulated. 0: there is nothing to replay."""

    def replay(self) -> None:
        """Run the recorded work at the recorded addresses, on the current stream, without waiting."""
        ...

    def nodes(self) -> list[str]:
        """Names of the nodes: kernels, or recorded ops when simulated."""
        ...

    def baked(self) -> list[BakedCall]:
        """The host values in the graph, in the order of its work; empty where the device does not tell them."""
        ...

    def steps(self) -> list[GraphStep] | None:
        """The calls one by one, for finding the one that goes wrong; None where a graph cannot be taken apart."""
        ...

    def close(self) -> None:
        """Give the graph back. Idempotent."""
        ...


class CaptureBackend(Protocol):
    """Records work into graphs. One thread captures at a time; replay needs no gate."""

    name: str
    device: torch.device
    runs_while_recording: bool
    """True if recorded work is executed as well, False if it is only recorded (CUDA)."""
    generation: Generation
    """Advanced by whoever replays, before anything that earlier replays have left is overwritten."""
    generators: GeneratorLog
    """Of the user's own random generators: each graph that begins knows those in it, and its replays advance them."""

    def phase(self, *, is_brief: bool = False) -> AbstractContextManager[None]:
        """Open the capture phase. Outside it `begin` raises `CaptureNotAllowedError`. GC is frozen within.

        Args:
            is_brief: steps wait for its end; see `CaptureGate.phase`.
        """
        ...

    def session(self) -> AbstractContextManager[None]:
        """Scope of one plan (its segments and the eager breaks between them), or of warm-up runs.

        On a device with streams this is the capture stream, joined with the caller's on entry and exit.
        A segment that an exception leaves open is aborted and the stream stays usable.
        """
        ...

    def begin(self, *, forbid: frozenset[str] = frozenset()) -> None:
        """Start to record. ``forbid`` names ops that this segment may not hold (`UnbrokenOpError`).

        Raises CaptureNotAllowedError outside `phase`, NestedCaptureError if a segment is open.
        """
        ...

    def end(self) -> CapturedGraph:
        """Stop recording. Raises `CaptureError` if the device had invalidated the capture."""
        ...

    def abort(self) -> None:
        """Throw the open segment away. Does nothing if none is open; never raises."""
        ...

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether this session's segments have made the memory of ``tensor``: each replay of the plan rewrites it.
        False in doubt, and as long as no open graph keeps that memory. Call between segments, inside `session`.
        """
        ...

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` for use at replay without keeping its memory from later captures, where that is safe.

        Safe means proven: this session `has_made` it, so each replay rewrites it before it is read. Then a tensor
        over the same memory is returned that owns nothing; otherwise ``tensor`` itself.
        """
        ...

    def note_external(self, tensor: torch.Tensor, by: str) -> None:
        """Enter what a break (``by``) is given, unless the session's segments have made it. Call inside `session`."""
        ...

    def externals(self) -> list[External]:
        """Memory that the session's segments, and the breaks that were noted, use and did not make."""
        ...

    def is_capturing(self) -> bool:
        """Whether a segment is open on this thread."""
        ...

    def memory(self) -> PoolMemory:
        """Measured now."""
        ...

    def executables(self) -> ExecutableCounts:
        """Counted now."""
        ...

    def usage(self) -> DeviceUsage:
        """Measured now, without waiting for the device."""
        ...

    def close(self) -> None:
        """Release the pool. Call after the graphs are closed. Idempotent."""
        ...
