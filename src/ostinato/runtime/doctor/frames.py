"""Whose line is it: the user's frames on the stack below the callable that is examined.

Frames of torch and of this package's runtime are left out; a callable that is all torch (`nn.Sequential`)
has none, and then torch's own innermost line is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType

__all__ = ["Frame", "Stack", "frames_of_error", "user_stack"]

_HIDDEN = ("torch.", "ostinato.runtime.", "contextlib", "functools")
_MACHINERY = ("torch.overrides", "torch.utils._", "torch._", "ostinato.runtime.", "contextlib", "functools")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line that is being executed."""

    code: CodeType
    line: int

    @property
    def file(self) -> str:
        """Of the code."""
        return self.code.co_filename

    @property
    def function(self) -> str:
        """Qualified name of the code."""
        return getattr(self.code, "co_qualname", self.code.co_name)


@dataclass(frozen=True, slots=True)
class Stack:
    """The user's frames, outermost (the root callable) first, and the line to name."""

    frames: tuple[Frame, ...]
    place: Frame | None


def user_stack(below: CodeType, frame: FrameType | None) -> Stack:
    """The stack from ``frame`` up to the frame that runs ``below`` (exclusive)."""
    return _stack(_walk(below, frame))


def frames_of_error(error: BaseException, below: CodeType) -> Stack:
    """The stack on which ``error`` was raised, down from the frame that runs ``below``.

    An error that was translated above that frame has its cause's stack.
    """
    raised: BaseException | None = error
    while raised is not None:
        frames = _raising_frames(raised)
        codes = [frame.f_code for frame, _ in frames]
        if below in codes:
            return _stack(reversed(frames[len(codes) - codes[::-1].index(below) :]))
        raised = raised.__cause__
    return _stack(reversed(_raising_frames(error)))


def _raising_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines of the traceback, outermost first."""
    found: list[tuple[FrameType, int]] = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        found.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return found


def _walk(below: CodeType, frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None and frame.f_code is not below:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _stack(innermost_first: Iterable[tuple[FrameType, int]]) -> Stack:
    users: list[Frame] = []
    place: Frame | None = None
    for frame, line in innermost_first:
        module = frame.f_globals.get("__name__", "")
        if not (module == "torch" or module.startswith(_HIDDEN)):
            users.append(Frame(frame.f_code, line))
        elif place is None and not users and not module.startswith(_MACHINERY):
            place = Frame(frame.f_code, line)
    return Stack(tuple(reversed(users)), users[0] if users else place)
