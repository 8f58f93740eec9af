"""Capture the callable in one mode and replay it on other rows: does it work, and into how many segments.

A replay that refuses or differs from eager shows what a capture has frozen although no rule forbids it.
Gives back all that it captured. Called by `diagnose` with and without the suggested breaks in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import GuardError, OstinatoError
from ostinato.runtime.buffers import BridgePool
from ostinato.runtime.capture import select_backend
from ostinato.runtime.doctor.findings import ModeOutcome
from ostinato.runtime.doctor.frames import Stack, frames_of_error
from ostinato.runtime.doctor.probe import call_target
from ostinato.runtime.keys import Compiler, GraphKey, Partition, RuntimeMode
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.runners import BoundCall, CapturedPlan, find_gap, make_runners

__all__ = ["MODES", "Example", "TrialFailure", "try_mode"]


@dataclass(frozen=True, slots=True)
class Example:
    """The callable and its example call; tensors in it belong to the caller and are never written."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num_rows: int
    """Length of the batch axis; 1 without one."""
    device: torch.device
    varies_rows: bool = True
    """Whether the callable takes other rows, and fewer."""
    honours_breaks: bool = True
    """Whether declared breaks run eagerly; False if it is only ever to be one full graph, which inlines them."""

    def copied(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with tensors of their own."""
        return self._mapped(torch.clone)

    def half(self, which: int, *, is_repeated: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the first (0) or second (1) half of the batch.

        Args:
            is_repeated: fill the batch with it instead, so that sizes are those of the example.
        """
        size = self.num_rows // 2
        rows = torch.arange(self.num_rows if is_repeated else size, device=self.device) % size + which * size
        return self._mapped(lambda t: t[rows.to(t.device)] if t.dim() and t.shape[0] == self.num_rows else t.clone())

    def _mapped(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made: dict[int, torch.Tensor] = {}  # a tensor that is passed twice stays one tensor

        def once(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = copy(tensor)
            return made[id(tensor)]

        args, kwargs = map_tensors((self.args, self.kwargs), once)
        return args, kwargs


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """Why a capture failed, and where in the user's code."""

    error: Exception
    stack: Stack


MODES = {"full": RuntimeMode.FULL, "piecewise": RuntimeMode.PIECEWISE, "breakable": RuntimeMode.PIECEWISE}
"""What is tried: one graph, the pieces of a traced partition, and those that need no tracer."""


def try_mode(
    mode: str,
    example: Example,
    *,
    partition: Partition,
    compiler: Compiler,
    compares: bool,
    with_breaks: bool = False,
    warnings: Sequence[str] = (),
) -> tuple[ModeOutcome, TrialFailure | None]:
    """Warm up, capture and replay in ``mode``; the outcome, and what failed if the capture did.

    Args:
        partition: of "piecewise".
        compiler: of what full graphs hold, and of the pieces of fx.
        compares: whether a replay's result must equal eager (not so if it draws random numbers or writes state).
        warnings: to start the outcome's with.
    """
    backend = select_backend(example.device)
    key = GraphKey(runtime_mode=MODES[mode], num_tokens=example.num_rows)
    args, kwargs = example.copied()
    call = BoundCall(_through(example.fn), args, kwargs)
    runner = make_runners(
        backend,
        partition=partition if mode == "piecewise" else Partition.BREAKABLE,
        compiler=compiler,
        compile_max_tokens=None,
        allow_unbroken_attention=True,  # the probe has found it, and it is a warning
        owns_arguments=True,
        bridges=BridgePool(),
    )[MODES[mode]]
    plan: CapturedPlan | None = None
    try:
        for _ in range(2):  # the second run of a runner that traces is the one that traces
            runner.warm_up(key, call)
        with backend.phase():
            plan = runner.capture(key, call)
        replay = _replayed(plan, example, args, kwargs, compares=compares)
        return _outcome(plan, replay, with_breaks, (*warnings, *_plan_warnings(plan, mode))), None
    except Exception as error:  # whatever the callable raises in a capture is the finding
        failed = ModeOutcome(
            is_captured=False, error=_told(error), with_suggested_breaks=with_breaks, warnings=tuple(warnings)
        )
        return failed, TrialFailure(error, frames_of_error(error, call_target.__code__))
    finally:
        if plan is not None:
            plan.close()
        backend.close()


def _through(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` below the frame that stacks are cut at; a tracer sees ``fn`` alike."""

    def step(*args: Any, **kwargs: Any) -> Any:
        return call_target(fn, args, kwargs)

    return step


def _replayed(plan: CapturedPlan, example: Example, args: Any, kwargs: Any, *, compares: bool) -> str:
    """Replay on the batch filled with either half, if rows may vary, and compare with eager each time."""
    others = [example.half(which, is_repeated=True) for which in (0, 1)] if example.varies_rows else [example.copied()]
    for other_args, other_kwargs in others:
        for static, other in zip(tensors((args, kwargs)), tensors((other_args, other_kwargs)), strict=True):
            static.copy_(other)
        try:
            got = [t.clone() for t in tensors(plan.replay(example.num_rows))]
        except GuardError:
            return "refused"
        if not compares:
            continue
        expected = list(tensors(example.fn(*other_args, **other_kwargs)))
        if find_gap(expected, got, is_exact=False)[0] is not None:
            return "different"
    return "equal" if compares else "not checked"


def _outcome(plan: CapturedPlan, replay: str, with_breaks: bool, warnings: tuple[str, ...]) -> ModeOutcome:
    if replay == "different":
        warnings += ("a replay on other rows differs from eager: the capture has frozen something",)
    if replay == "refused":
        warnings += ("a replay on other rows is refused: a break returns a number or shape that follows the data",)
    return ModeOutcome(
        is_captured=True,
        num_segments=plan.num_segments,
        num_breaks=len(plan.breaks),
        num_nodes=plan.num_nodes,
        replay=replay,
        warnings=warnings,
        with_suggested_breaks=with_breaks,
    )


def _plan_warnings(plan: CapturedPlan, mode: str) -> list[str]:
    """Plans that were captured and are not what their author meant (FEATURES D6)."""
    found = []
    if plan.num_missing_breaks and not plan.breaks:
        found.append("no break is in the plan, though warm-up met declared breaks: they were captured or skipped")
    elif plan.num_missing_breaks:
        found.append(f"{plan.num_missing_breaks} declared breaks that warm-up met are not in the plan")
    if plan.num_nodes == 0:
        found.append("nothing was recorded: there is no work on the device outside of breaks")
    elif any(getattr(entry, "num_nodes", 1) == 0 for entry in plan.entries):
        found.append("the plan has an empty segment")
    return found


def _told(error: Exception) -> dict[str, Any]:
    if isinstance(error, OstinatoError):
        return error.to_dict()
    return {
        "code": "",
        "type": type(error).__name__,
        "message": str(error).partition("\n")[0],
        "fix": "",
        "context": {},
    }
