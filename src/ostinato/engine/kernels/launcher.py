"""`Launcher`: a Triton kernel with its constants bound, whose launch outside of a graph costs the host little.

Triton binds arguments, builds a key of all that it specialises on and looks at its settings at every launch. Here a
`Launch` has all bound that shapes decide, and the compiled kernel is kept by what else can differ from launch to
launch, and is run as Triton runs it. The key is never coarser than Triton's. Triton itself is asked for each new key,
while a profiler listens to launches, and wherever its launcher is not one that is known; `why_triton_launches` says
why. Its compiler's settings (debug, instrumentation) are those of a kernel's first launch. Called by the kernels of
attention and of the layers, which keep launches by shapes; imports no triton by itself.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from ostinato.runtime.breaks import jit_mark

__all__ = ["LAUNCHES_KEPT", "Launch", "LaunchHost", "Launcher", "number_kinds", "specialisation", "why_triton_launches"]

logger = logging.getLogger("ostinato")

_ALIGNMENT = 16  # of pointers and numbers, in Triton's specialisation
LAUNCHES_KEPT = 1024
"""Launches that a kernel's file keeps by the shapes that they are for, which traffic varies without end."""
_RUN_PARAMETERS = ["gridX", "gridY", "gridZ", "stream", "function"]
"""How the parameters of a compiled kernel's ``run`` begin."""
_NUM_BEFORE_OWN = 4
"""How many of its parameters follow before the kernel's own: its metadata, those of the launch, and two hooks."""


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


def specialisation(device: int, tensors: Sequence[Tensor | None]) -> tuple[tuple[object, ...] | None, list[int]]:
    """A key that differs wherever Triton would take another compiled kernel, and the addresses of ``tensors``.

    None for a key: something is not on ``device``. None for a tensor: see `Launch`.
    """
    pointers: list[int] = []
    key: list[object] = [device]
    union = 0
    for tensor in tensors:
        if tensor is None:
            pointers.append(pointers[0])
            key.append(key[1])
            continue
        if tensor.get_device() != device:
            return None, []
        pointer = tensor.data_ptr()
        pointers.append(pointer)
        union |= pointer
        key.append(tensor.dtype)
    if union % _ALIGNMENT:
        key += [pointer % _ALIGNMENT != 0 for pointer in pointers]
    return tuple(key), pointers


def number_kinds(numbers: Sequence[float]) -> tuple[int, ...] | None:
    """What Triton specialises on of ``numbers``; None: one is of a kind that only Triton knows."""
    kinds = tuple(map(_kind, numbers))
    return None if None in kinds else kinds  # type: ignore[return-value]


def _kind(number: float) -> int | None:
    if type(number) is float:
        return 0
    if type(number) is not int or not -(2**31) <= number < 2**31:  # wider integers are other types to a kernel
        return None
    if number == 1:
        return 1
    return 2 if number % _ALIGNMENT == 0 else 3


class _Run(NamedTuple):
    """What runs a compiled kernel, and what it is given besides the kernel and its arguments."""

    call: Callable[..., Any]
    before: tuple[Any, ...] = ()
    """Between the function and the metadata."""
    behind: tuple[Any, ...] = ()
    """Between the hooks and the kernel's arguments."""
    is_nested: bool = False
    """Whether the kernel's arguments are one tuple."""


def _innermost(run: Callable[..., Any]) -> _Run:
    """What ``run`` of a compiled kernel calls in the end.

    Triton's launchers are Python around a C function, ``launch``: they allocate scratch memory, which few kernels need.
    A copy whose ``launch`` only notes shows what one does. Unless it hands on all that it is given, in order and with
    nothing but settings of its own between, ``run`` itself is what is called.
    """
    launch, copied = getattr(run, "launch", None), copy.copy(run)
    if launch is None or copied is run:
        return _Run(run)
    first, hooks, own = ([object() for _ in range(count)] for count in (len(_RUN_PARAMETERS), _NUM_BEFORE_OWN, 3))
    seen: list[Any] = []
    try:
        settings = [*vars(run).values()]
        copied.launch = lambda *arguments: seen.extend(arguments)  # type: ignore[attr-defined]
        copied(*first, *hooks, *own)
        is_nested = seen[-1] == tuple(own)
        if is_nested:
            seen += seen.pop()
        place, end = seen.index(hooks[0]), len(seen) - len(own)
    except Exception:  # what it is given is nonsense to whatever looks at it
        return _Run(run)
    before, behind = seen[len(first) : place], seen[place + len(hooks) : end]
    is_handed_on = seen == [*first, *before, *hooks, *behind, *own]
    are_settings = all(each is None or any(each is setting for setting in settings) for each in (*before, *behind))
    return _Run(launch, tuple(before), tuple(behind), is_nested) if is_handed_on and are_settings else _Run(run)


_Compiled = dict[tuple[object, ...], tuple[Callable[..., Any], tuple[Any, ...], bool, Any]]
"""By the specialisation of the tensors: what runs the compiled kernel, what it is given between stream and the kernel's
arguments, whether those are one tuple, and the kernel, which must live as long."""


class Launcher:
    """One kernel with its constants and options.

    Args:
        kernel: a `triton.jit` function whose parameters are tensors, then numbers, then the constants.
        mark: see `jit_mark`; everything that ``constants`` were chosen by.
        constants: the kernel's ``tl.constexpr`` parameters, and Triton's options (``num_warps``, ...).
    """

    def __init__(self, kernel: Any, mark: str, **constants: Any) -> None:
        self.kernel, self.mark, self.named = kernel, mark, constants
        own = [name for name in kernel.arg_names if name in constants]
        assert own == kernel.arg_names[len(kernel.arg_names) - len(own) :], "constants come last"
        self.num_arguments = len(kernel.arg_names) - len(own)
        self.constants = tuple(constants[name] for name in own)
        self._compiled: dict[tuple[int, ...], _Compiled] = {}

    def at(self, grid: tuple[int, int, int], *numbers: float) -> Launch:
        """The launch with this grid and these numbers, for whoever makes it more often than once."""
        return Launch(self, grid, numbers)

    def __call__(self, grid: tuple[int, int, int], tensors: Sequence[Tensor | None], *numbers: float) -> None:
        """Make a launch once; see `Launch`."""
        Launch(self, grid, numbers)(*tensors)

    def compiled(self, numbers: Sequence[float]) -> _Compiled | None:
        """What launches with numbers of these kinds share; None: only Triton knows what it compiles for them."""
        kinds = number_kinds(numbers)
        return None if kinds is None else self._compiled.setdefault(kinds, {})


class Launch:
    """A kernel with all bound that does not change from launch to launch: what is left is where its tensors lie.

    Args:
        launcher: of the kernel.
        grid: programs on each axis.
        numbers: the kernel's.
    """

    def __init__(self, launcher: Launcher, grid: tuple[int, int, int], numbers: tuple[float, ...]) -> None:
        self._launcher, self._grid, self._numbers = launcher, grid, numbers
        self._kernel, self._mark = launcher.kernel, launcher.mark
        self._compiled = launcher.compiled(numbers)
        self._last = (*numbers, *launcher.constants)

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current stream.

        Args:
            tensors: of the kernel, in order. None: with these constants it does not look at it, and the first tensor
                stands in for it.

        Raises:
            JitInCaptureError: the first launch of the kernel falls into a capture.
        """
        jit_mark(self._mark)
        key, host, compiled = None, _host()[0], self._compiled
        if host is not None and compiled is not None and not (host.has_listeners() or self._kernel.pre_run_hooks):
            device = host.current_device()
            key, pointers = specialisation(device, tensors)
            known = compiled.get(key)  # type: ignore[arg-type]
            if known is not None:
                run, fixed, is_nested, _ = known
                if is_nested:
                    run(*self._grid, host.current_stream(device), *fixed, (*pointers, *self._last))
                else:
                    run(*self._grid, host.current_stream(device), *fixed, *pointers, *self._last)
                return
        self._launch_by_triton(key, tensors)

    def _launch_by_triton(self, key: tuple[object, ...] | None, tensors: tuple[Tensor | None, ...]) -> None:
        """What it has compiled is kept by ``key``, if there is one."""
        assert len(tensors) + len(self._numbers) == self._launcher.num_arguments, self._mark
        given = [tensors[0] if tensor is None else tensor for tensor in tensors]
        compiled = self._kernel[self._grid](*given, *self._numbers, **self._launcher.named)
        if key is not None and compiled is not None:  # Triton launches nothing where a hook forbids to compile
            assert self._compiled is not None
            run = _innermost(compiled.run)
            fixed = (compiled.function, *run.before, compiled.packed_metadata, None, None, None, *run.behind)
            self._compiled[key] = (run.call, fixed, run.is_nested, compiled)


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
