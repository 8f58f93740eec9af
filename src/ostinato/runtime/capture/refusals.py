"""What the CUDA driver refuses in a capture, told by its message: the typed error of each refusal.

For what no watch could see coming. Libraries raise the driver's errors under their own types; name or description of
the error is in the text of all of them, in the runtime's spelling, the driver's or HIP's. Knows no device.

Source: CUDA Runtime API, "enum cudaError", 900 to 908.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from ostinato.errors import CaptureError, HostSyncError, JitInCaptureError, OstinatoError, UnjoinedStreamError
from ostinato.runtime.capture.watch import unknown_generator
from ostinato.runtime.user_frames import raising_frame, user_frame

__all__ = ["is_unjoined", "typed_refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """One error of the driver."""

    name: str
    """Its end, after "error", which runtime, driver and HIP share but for case and underscores."""
    text: str
    """The driver's description."""
    error: type[CaptureError]
    what: str
    fix: str


_WAITS = _Refusal(
    name="",
    text="Cannot copy between CPU and CUDA tensors during CUDA graph capture",  # torch's own
    error=HostSyncError,
    what="a call would wait for the device in a capture",
    fix="move the call into a @graph_break function, or do it during warm_up",
)
_LOADS = _Refusal(
    name="",
    text="",
    error=JitInCaptureError,
    what="a kernel would compile or load for the first time inside a capture",
    fix="launch it once during warm_up with the same specialisation",
)
_UNSUPPORTED = _Refusal(
    name="StreamCaptureUnsupported",
    text="operation not permitted when stream is capturing",
    error=CaptureError,
    what="a call that the device does not permit in a capture: an allocation outside of the graph's pool (cudaMalloc), "
    "or a wait for the device",
    fix="do it during warm_up, or in a @graph_break function; a tensor made by torch takes memory of the pool",
)
_UNJOINED = _Refusal(
    name="StreamCaptureUnjoined",
    text="capturing stream has unjoined work",
    error=UnjoinedStreamError,
    what="a stream was forked in the capture and not joined to it again",
    fix="after the side stream's last work, in the segment: current_stream().wait_stream(side)",
)
_ACROSS = "fork and join in one segment, after every break anew; wait for other work before the graph"
_REFUSALS = (
    _UNSUPPORTED,
    _WAITS,
    _UNJOINED,
    _Refusal(
        name="StreamCaptureInvalidated",
        text="operation failed due to a previous error during capture",
        error=CaptureError,
        what="the device had invalidated the capture: it refused a call of the segment, whose error went unraised",
        fix="look at calls before it that wait for the device or allocate by themselves (cudaMalloc), in libraries "
        "beside torch; move them into a @graph_break function, or do them during warm_up",
    ),
    _Refusal(
        name="StreamCaptureMerge",
        text="operation would result in a merge of separate capture sequences",
        error=UnjoinedStreamError,
        what="a stream waits for the work of another capture",
        fix=_ACROSS,
    ),
    _Refusal(
        name="StreamCaptureUnmatched",
        text="capture was not ended in the same stream as it began",
        error=UnjoinedStreamError,
        what="the segment ends on another stream than it began on",
        fix="leave the side stream, and join it, before the break or the end",
    ),
    _Refusal(
        name="StreamCaptureIsolation",
        text="dependency created on uncaptured work in another stream",
        error=UnjoinedStreamError,
        what="a stream waits across the border of a segment, for work outside of it",
        fix=_ACROSS,
    ),
    _Refusal(
        name="StreamCaptureImplicit",
        text="operation would make the legacy stream depend on a capturing blocking stream",
        error=UnjoinedStreamError,
        what="work on the legacy default stream, which was not forked from the capturing stream",
        fix="let the library use torch.cuda.current_stream().cuda_stream",
    ),
    _Refusal(
        name="CapturedEvent",
        text="operation not permitted on an event last recorded in a capturing stream",
        error=HostSyncError,
        what="the host asks for an event of a capture, which no device has reached",
        fix=_WAITS.fix,
    ),
    _Refusal(
        name="StreamCaptureWrongThread",
        text="attempt to terminate a thread-local capture sequence from another thread",
        error=CaptureError,
        what="another thread ended the capture",
        fix="capture from one thread, and end there what was begun there",
    ),
)
_OTHER = _Refusal(
    name="",
    text="",
    error=CaptureError,
    what="torch or the device refused a call in a capture",
    fix="move the call into a @graph_break function, or do it during warm_up",
)
_NEW_GENERATOR = "Cannot construct a new CUDAGeneratorImpl"
_GENERATOR_WORDS = ("CUDA generator", "captur")  # torch's own, from a kernel that no watch sees
_OTHER_WORDS = ("StreamCapture", "during CUDA graph capture", "capturing")


def is_unjoined(error: Exception) -> bool:
    """Whether the device found work of a fork that was not joined."""
    return _find(str(error)) is _UNJOINED


def typed_refusal(error: Exception) -> Exception:
    """A `CaptureError` for what was refused in a capture, with the user's line; ``error`` itself if it is another."""
    if isinstance(error, OstinatoError):
        return error
    text = str(error)
    if all(word in text for word in _GENERATOR_WORDS):
        return unknown_generator("a kernel", at=raising_frame(error))
    if _NEW_GENERATOR in text:
        return unknown_generator("the callable", at=raising_frame(error))
    refusal = _find(text)
    if refusal is None and isinstance(error, RuntimeError) and any(word in text for word in _OTHER_WORDS):
        refusal = _OTHER
    if refusal is None:
        return error
    if refusal is _UNSUPPORTED:
        refusal = _told_by_caller(error) or refusal
    at = raising_frame(error)
    return refusal.error(
        f"{refusal.what}: {text.strip().splitlines()[0]}", fix=refusal.fix, at=user_frame() if at == "unknown" else at
    )


def _find(text: str) -> _Refusal | None:
    squeezed = text.replace("_", "").lower()
    for refusal in _REFUSALS:
        if refusal.text in text or (refusal.name and f"error{refusal.name.lower()}" in squeezed):
            return refusal
    return None


def _told_by_caller(error: Exception) -> _Refusal | None:
    """The driver has one error for all that it does not permit; the innermost function often says what that was."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return None
    frame = frames[-1]
    name = frame.f_code.co_name.lower()
    module = frame.f_globals.get("__name__", "")
    if "synchronize" in name or name.endswith(("query", "elapsed_time")) or module.startswith("torch."):
        return _WAITS  # torch's own functions take memory of the pool; print() hides its look at the values
    return _LOADS if module.startswith("triton.") else None
