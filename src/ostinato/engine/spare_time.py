"""`SpareTime`: what an engine does between two steps besides serving: a shadow's comparison, and captures.

Each has a share of the time while requests run, and decides by it (`ShadowTurns`, `BackgroundCapture`); here is the
order, and what must be read or delivered before. Owned by `LLM`, which holds its lock meanwhile.
"""

from __future__ import annotations

from ostinato.engine.execution import BackgroundCapture, ShadowTurns
from ostinato.engine.loop import EngineLoop
from ostinato.errors import EngineDeadError

__all__ = ["SpareTime"]


class SpareTime:
    """Used between steps.

    Args:
        loop: whose steps.
        background: captures what is pending; None: nothing ever is.
        shadow: compares steps that were kept; None: none ever is.
        may_move: graphs may become pending again.
    """

    def __init__(
        self, loop: EngineLoop, *, background: BackgroundCapture | None, shadow: ShadowTurns | None, may_move: bool
    ) -> None:
        self._loop = loop
        self._background = background
        self._shadow = shadow
        self._may_move = may_move

    @property
    def is_needed(self) -> bool:
        """Whether there is, or may come, anything to do."""
        return self._shadow is not None or self._may_capture

    def use(self) -> None:
        """Do what is due before the next step."""
        loop = self._loop
        is_idle, earliest_deadline = not loop.has_work(), loop.earliest_deadline
        if self._shadow is not None and self._shadow.is_due(is_idle=is_idle, earliest_deadline=earliest_deadline):
            if loop.is_ahead:
                loop.hold()  # first its tokens go out
                return
            self._shadow.run(is_idle=is_idle)
        background = self._background
        if background is not None and background.is_due(is_idle=is_idle, earliest_deadline=earliest_deadline):
            try:
                loop.settle()
            except EngineDeadError:  # the step that comes delivers what its requests are told
                return
            try:
                background.capture_next(is_idle=is_idle)
            except Exception as error:  # a tensor that moved, say: no step may fail for a graph that it can do without
                background.stop(error)

    def compare_kept(self, *, max_seconds: float) -> None:
        """While nothing runs: compare the step that waits for it, if that may take no longer."""
        shadow = self._shadow
        if shadow is not None and shadow.is_waiting and shadow.expected_seconds <= max_seconds:
            shadow.run(is_idle=True)

    @property
    def _may_capture(self) -> bool:
        background = self._background
        return (
            background is not None and background.stopped_by is None and (self._may_move or background.num_pending > 0)
        )
