"""`Life`: how far a callable has come, from planned to closed, and the refusal of what comes too early or too late.

Shared by the facade, which moves it on, and by live steps, which end with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ostinato.errors import ClosedError, RuntimeStateError
from ostinato.runtime.keys import GraphKey

__all__ = ["Life", "Stage"]


class Stage(StrEnum):
    """Named as messages name it."""

    PLANNED = "planned"
    WARM = "warmed up"
    CAPTURED = "captured"
    CLOSED = "closed"


class Life:
    """The stage that a callable is in now."""

    def __init__(self) -> None:
        self.stage = Stage.PLANNED
        self.is_over = False
        """Whether it was closed. An attribute, since each step asks."""

    def end(self) -> None:
        """It is closed from here on."""
        self.stage, self.is_over = Stage.CLOSED, True

    def require(self, *stages: Stage, step: str) -> None:
        """Raise if ``step`` is called in none of ``stages``.

        Raises:
            RuntimeStateError: it is too early or too late for it.
            ClosedError: much too late.
        """
        self.require_open()
        if self.stage not in stages:
            raise RuntimeStateError(
                f"{step}() was called when the callable was {self.stage}",
                fix="the order is: warm_up(), capture(), then calls, then close(); after release() call recapture()",
            )

    def require_captured(self, keys: Sequence[GraphKey], *, step: str) -> None:
        """Raise like `require` unless all planned ``keys`` are captured, or there are none (mode "none")."""
        self.require(Stage.CAPTURED, *([] if keys else [Stage.WARM]), step=step)

    def require_open(self) -> None:
        """Raise `ClosedError` once it was closed."""
        if self.is_over:
            raise ClosedError("this Graphed was closed", fix="make a new one, or keep the with block open")
