"""An eager run that is watched for numbers and strings which a plan has frozen in its breaks' arguments.

What the callable reads from Python state and hands to a break is not seen at a replay, which does not run the callable.
An eager run sees it, in every partition: also where a trace has made a constant of it. Used by qualification and by the
shadow, never in a run that is timed.
"""

from __future__ import annotations

from typing import Any

from ostinato.errors import FrozenValueError
from ostinato.runtime.breaks import BreakPoint, handling_breaks
from ostinato.runtime.runners import BreakRecord, Call, CapturedPlan

__all__ = ["run_watched"]


def run_watched(call: Call, plan: CapturedPlan) -> tuple[Any, FrozenValueError | None]:
    """What ``call`` returns, run eagerly at the sizes of ``plan``; and what it gives a break otherwise than that."""
    watch = _Watch()
    with handling_breaks(watch):
        result = call()
    return result, watch.seen.changed_since(plan.frozen_arguments())


class _Watch:
    """Break handler that runs breaks inline."""

    def __init__(self) -> None:
        self.seen = BreakRecord()

    def run_break(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.add(point, args, kwargs)
        with handling_breaks(None):
            return point.fn(*args, **kwargs)
