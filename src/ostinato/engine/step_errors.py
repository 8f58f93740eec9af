"""Whether an exception of a step leaves the device usable, and the typed errors that its requests end with.

A CUDA error that sticks (an illegal address, a device-side assert) comes back from every later call until the process
ends; anything else is over when its step is. Judged by type and text, because torch keeps no error code on the
exception. It leaves out what is then done. Called by the loop and by the sampler.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final, TypeVar

import torch

from ostinato.errors import EngineDeadError, StepFailedError

__all__ = ["engine_dead", "leaves_device_usable", "step_failed", "with_cause"]

_Error = TypeVar("_Error", bound=Exception)

_DEVICE_ERROR: Final = re.compile(r"\b(CUDA|CUDA driver|HIP|XPU|cuDNN|NCCL|Triton) error\b", re.IGNORECASE)
# The errors that the CUDA runtime's documentation does not call sticky, as cudaGetErrorString and cuBLAS word them.
# What is not known to pass is taken to stay: a device that is wrongly given up is restarted, one that is wrongly
# trusted fails every request that comes.
_PASSES: Final = re.compile(
    r"out of memory|invalid (argument|configuration argument|device function|resource handle)|no kernel image"
    r"|too many resources requested|not supported|captur"
    r"|STATUS_(ALLOC_FAILED|INVALID_VALUE|NOT_SUPPORTED|ARCH_MISMATCH)",
    re.IGNORECASE,
)
_ACCELERATOR_ERROR: Final[type[BaseException] | None] = getattr(torch, "AcceleratorError", None)


def leaves_device_usable(error: BaseException) -> bool:
    """False when the device will answer every later call with an error: ``error`` or one behind it says so."""
    return not any(_sticks(each) for each in _chain(error))


def step_failed(error: BaseException, *, num_reqs: int) -> StepFailedError:
    """What the ``num_reqs`` requests of a failed step end with; ``error`` is its cause."""
    failed = StepFailedError(
        f"the step failed: {_named(error)}",
        fix="see the cause; the engine goes on, so the request may be sent again",
        num_reqs=num_reqs,
    )
    return with_cause(failed, error)


def engine_dead(error: BaseException) -> EngineDeadError:
    """What every request ends with when the engine cannot go on; ``error`` is its cause."""
    fix = "start a new process: the device, or the engine's own books, cannot be trusted any more"
    return with_cause(EngineDeadError(f"the engine is dead: {_named(error)}", fix=fix), error)


def with_cause(found: _Error, cause: BaseException) -> _Error:
    """``found``, caused by ``cause``, whose frames let go of what they held."""
    for each in _chain(cause):
        traceback.clear_frames(each.__traceback__)  # an error that somebody keeps must not keep the step's tensors
    found.__cause__ = cause
    return found


def _sticks(error: BaseException) -> bool:
    lines = str(error).splitlines() or [""]
    if _ACCELERATOR_ERROR is not None and isinstance(error, _ACCELERATOR_ERROR):
        return not _PASSES.search(lines[0])
    # Line by line: the advice below an error's first line speaks of device-side assertions whatever has happened.
    return isinstance(error, RuntimeError) and any(_DEVICE_ERROR.search(s) and not _PASSES.search(s) for s in lines)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those behind it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _named(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
