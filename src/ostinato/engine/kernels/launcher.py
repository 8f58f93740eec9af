"""`Launcher`: a Triton kernel with its constants bound, whose launch outside of a graph costs the host little.

Triton binds arguments, builds a key of all that it specialises on and looks at its settings at every launch. Here the
compiled kernel is kept by what of that can differ from launch to launch, and is run as Triton runs it. The key is never
coarser than Triton's. Triton itself is asked for each new key, while a profiler listens to launches, and wherever its
launcher is not one that is known; `why_triton_launches` says why. Its compiler's settings (debug, instrumentation) are
those of a kernel's first launch. Called by the kernels of attention and of the layers; imports no triton by itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from ostinato.runtime.breaks import jit_mark

__all__ = ["LaunchHost", "Launcher", "specialisation", "why_triton_launches"]

logger = logging.getLogger("ostinato")

_ALIGNMENT = 16  # of pointers and numbers, in Triton's specialisation
_RUN_PARAMETERS = ["gridX", "gridY", "gridZ", "stream", "function"]
"""How the parameters of a compiled kernel's ``run`` begin; metadata, hooks and the kernel's arguments follow."""


class LaunchHost:
    """What must be asked at every launch.

    Args:
        driver: Triton's active driver.
        settings: Triton's settings of its runtime, with the hooks on launches.
    """

    def __init__(self, driver: Any, settings: Any) -> None:
        self.current_device: Callable[[], int] = driver.get_current_device
        self.current_stream: Callable[[int], int] = driver.get_current_stream
        """Of torch, on this thread: in a capture the capturing one."""
        self._settings = settings

    def has_listeners(self) -> bool:
        """Whether somebody hooked into launches: a profiler."""
        enter, leave = self._settings.launch_enter_hook, self._settings.launch_exit_hook
        return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))  # a chain of hooks, or one


def specialisation(
    device: int, tensors: Sequence[Tensor], numbers: Sequence[float]
) -> tuple[tuple[object, ...] | None, list[int]]:
    """A key that differs wherever Triton would take another compiled kernel, and the addresses of ``tensors``.

    None for a key: something is not on ``device``, or of a kind that only Triton knows.
    """
    pointers, dtypes, union = [], [], 0
    for tensor in tensors:
        if tensor.get_device() != device:
            return None, []
        pointer = tensor.data_ptr()
        pointers.append(pointer)
        dtypes.append(tensor.dtype)
        union |= pointer
    kinds = [_kind(number) for number in numbers]
    if None in kinds:
        return None, []
    misaligned = tuple([pointer % _ALIGNMENT != 0 for pointer in pointers]) if union % _ALIGNMENT else None
    return (device, misaligned, *dtypes, *kinds), pointers


def _kind(number: float) -> int | None:
    if type(number) is float:
        return 0
    if type(number) is not int or not -(2**31) <= number < 2**31:  # wider integers are other types to a kernel
        return None
    if number == 1:
        return 1
    return 2 if number % _ALIGNMENT == 0 else 3


class Launcher:
    """One kernel with its constants and options.

    Args:
        kernel: a `triton.jit` function whose parameters are tensors, then numbers, then the constants.
        mark: see `jit_mark`; everything that ``constants`` were chosen by.
        constants: the kernel's ``tl.constexpr`` parameters, and Triton's options (``num_warps``, ...).
    """

    def __init__(self, kernel: Any, mark: str, **constants: Any) -> None:
        self._kernel, self._mark, self._named = kernel, mark, constants
        own = [name for name in kernel.arg_names if name in constants]
        assert own == kernel.arg_names[len(kernel.arg_names) - len(own) :], "constants come last"
        self._num_arguments = len(kernel.arg_names) - len(own)
        self._constants = tuple(constants[name] for name in own)
        self._compiled: dict[tuple[object, ...] | None, tuple[Any, ...]] = {}

    def __call__(self, grid: tuple[int, int, int], tensors: Sequence[Tensor], *numbers: float) -> None:
        """Launch on the current stream.

        Raises:
            JitInCaptureError: its first launch falls into a capture.
        """
        jit_mark(self._mark)
        key, host = None, _host()[0]
        if host is not None and not (host.has_listeners() or self._kernel.pre_run_hooks):
            device = host.current_device()
            key, pointers = specialisation(device, tensors, numbers)
            known = self._compiled.get(key)
            if known is not None:
                run, function, packed, _ = known
                stream = host.current_stream(device)
                run(*grid, stream, function, packed, None, None, None, *pointers, *numbers, *self._constants)
                return
        assert len(tensors) + len(numbers) == self._num_arguments, self._mark
        compiled = self._kernel[grid](*tensors, *numbers, **self._named)
        if key is not None and compiled is not None:  # Triton launches nothing where a hook forbids to compile
            self._compiled[key] = (compiled.run, compiled.function, compiled.packed_metadata, compiled)


def why_triton_launches() -> str | None:
    """Why every launch goes through Triton in this process; None: repeated ones do not."""
    return _host()[1]


@cache
def _host() -> tuple[LaunchHost | None, str | None]:
    """The host of this process, or why there is none."""
    import triton

    host, reason = _host_of(triton)
    if reason is not None:
        logger.info("kernels are launched by Triton's own launcher: %s", reason)
    return host, reason


def _host_of(triton: Any) -> tuple[LaunchHost | None, str | None]:
    settings = getattr(getattr(triton, "knobs", None), "runtime", None)
    if not (hasattr(settings, "launch_enter_hook") and hasattr(settings, "launch_exit_hook")):
        return None, "this Triton does not tell who listens to launches"
    if getattr(settings, "interpret", False):  # whatever it takes for yes, and before its driver: there may be none
        return None, "kernels are interpreted"
    driver = triton.runtime.driver.active
    backend = driver.get_current_target().backend
    if backend != "cuda":
        return None, f"what the {backend} backend specialises on is not known"
    launcher = getattr(driver, "launcher_cls", None)
    names = [] if launcher is None else list(inspect.signature(launcher.__call__).parameters)
    if names[1 : 1 + len(_RUN_PARAMETERS)] != _RUN_PARAMETERS:
        return None, f"its launcher takes {names}"
    return LaunchHost(driver, settings), None
