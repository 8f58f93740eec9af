"""`EngineSleep`: an idle engine gives its graphs and the memory of its cache back, and takes them again.

Weights, static buffers and the addresses of the cache stay, so that waking is a capture and no load. What was left out
or quarantined before stays so. Owned by `EngineGraphs`; that requests are refused meanwhile is the caller's business.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.memory_budget import available_bytes
from ostinato.errors import OutOfMemoryError, RuntimeStateError
from ostinato.runtime import GraphKey, Reason

__all__ = ["EngineSleep", "SleepReport"]

_STAYS = (Reason.QUARANTINED, Reason.CAPTURE_FAILED)


@dataclass(frozen=True, kw_only=True)
class SleepReport:
    """What falling asleep gave back."""

    num_graphs: int
    """Captured keys, which waking captures again."""
    kv_bytes: int
    """Of the KV cache. 0 where a device cannot take memory from behind addresses (a CPU, some CUDA devices): there the
    cache keeps its memory."""
    device_bytes: int | None
    """By which the free memory of a CUDA device has grown, the cache included; None on a CPU."""


class EngineSleep:
    """Whether an engine sleeps, and what it needs to wake.

    Args:
        captures: all made, or still to come while the executor serves.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._executor = captures.executor
        self._before: dict[GraphKey, Reason | None] = {}
        self.is_asleep = False
        self.num_sleeps = 0

    def begin(self) -> SleepReport:
        """Give back what can be; no request may be in progress."""
        graphed = self._executor.graphed
        before, free_bytes = {key: graphed.why_blocked(key) for key in graphed.keys}, self._free_bytes()
        num_graphs = len(graphed.plans)
        self._executor.finish_shadow()
        kv_bytes = self._give_back()
        self._before, self.is_asleep = before, True
        self.num_sleeps += 1
        is_cuda = graphed.device.type == "cuda"
        return SleepReport(
            num_graphs=num_graphs,
            kv_bytes=kv_bytes,
            device_bytes=self._free_bytes() - free_bytes if is_cuda else None,
        )

    def end(self, *, on_key: Callable[[GraphKey], None] | None = None) -> None:
        """Capture again what was captured, and put memory behind the cache, in the order of a start.

        Args:
            on_key: told of each key once it is warm and once it is captured.

        Raises:
            RuntimeStateError: it does not sleep.
            OutOfMemoryError: somebody else has taken the memory; it sleeps on.
            AddressChangedError: something that a graph reads does not lie where it was captured; it sleeps on.
            CaptureError: no key at all could be captured; it sleeps on.
        """
        if not self.is_asleep:
            raise RuntimeStateError("wake() was called on an engine that is awake", fix="call sleep() first")
        try:
            self._resume(on_key)
            self._executor.graphed.check_guards()
        except BaseException as error:
            self._give_back()
            if isinstance(error, torch.OutOfMemoryError):
                raise OutOfMemoryError(
                    "the graphs do not fit any more", fix="free the device, and try again"
                ) from error
            raise
        self.is_asleep = False

    def to_dict(self) -> dict[str, Any]:
        """``{"state": "awake" | "asleep", "sleeps"}``."""
        return {"state": "asleep" if self.is_asleep else "awake", "sleeps": self.num_sleeps}

    def _resume(self, on_key: Callable[[GraphKey], None] | None) -> None:
        executor, before = self._executor, self._before
        left_out = {key: why for key, why in before.items() if why in _STAYS}
        executor.graphed.leave_out(left_out, why="it was so before the engine slept")  # type: ignore[arg-type]
        if Reason.NOT_CAPTURED_YET not in before.values():
            self._captures.capture(on_key=on_key)
            executor.kv_pool.take_back()
            return
        executor.graphed.defer_capture()  # the others come in the background, as before
        executor.kv_pool.take_back()
        for key in [key for key, why in before.items() if why is None]:
            self._captures.capture_late(key)
            if on_key is not None:
                on_key(key)

    def _give_back(self) -> int:
        """The bytes of the cache."""
        executor = self._executor
        self._captures.release()
        executor.forget_requests()
        kv_bytes = executor.kv_pool.give_back()
        if executor.graphed.device.type == "cuda":
            gc.collect()  # a plan may be part of a cycle
            torch.cuda.empty_cache()
        return kv_bytes

    def _free_bytes(self) -> int:
        return available_bytes(self._executor.graphed.device)
