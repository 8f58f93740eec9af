"""The one exception tree of Ostinato, with stable codes.

Every error that a user can meet is a subclass of `OstinatoError`. An error says what failed, where
(``context``: layer, op, bucket, key), what was expected and got, and what to do (``fix``). Codes never
change their meaning, so scripts and dashboards may key on them. No torch here: every layer may raise.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AddressChangedError",
    "AsleepError",
    "BreakOutputError",
    "CaptureError",
    "CaptureNotAllowedError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "DeviceUnavailableError",
    "DynamicShapeError",
    "EngineDeadError",
    "EngineError",
    "ForeignCostsError",
    "FrozenValueError",
    "GuardError",
    "HostSyncError",
    "InputSpecError",
    "JitInCaptureError",
    "ModelNotFoundError",
    "NestedCaptureError",
    "OstinatoError",
    "OutOfMemoryError",
    "PageIntegrityError",
    "QualificationError",
    "RequestError",
    "RuntimeStateError",
    "StaleOutputError",
    "StepFailedError",
    "TargetError",
    "TensorDroppedError",
    "TensorReboundError",
    "UnbrokenOpError",
    "UnjoinedStreamError",
    "UnknownGeneratorError",
    "UnknownNameError",
    "UnsupportedArchitectureError",
    "UnsupportedPartitionError",
    "UntraceableBreakError",
    "UntraceableError",
    "UnwritableCacheError",
    "WorkspaceGrowthError",
]


class OstinatoError(Exception):
    """Root of the tree.

    Args:
        message: what failed, in one sentence.
        fix: what the reader should do about it, in one sentence.
        context: where it happened and what was expected and got, as plain values.
    """

    code: ClassVar[str] = "OST000"

    def __init__(self, message: str, *, fix: str = "", **context: Any) -> None:
        self.message = message
        self.fix = fix
        self.context = context
        super().__init__(message)

    def __str__(self) -> str:
        parts = [f"[{self.code}] {self.message}"]
        if self.context:
            parts.append("(" + ", ".join(f"{k}={v}" for k, v in self.context.items()) + ")")
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain values, for ``--json`` and HTTP bodies."""
        return {
            "code": self.code,
            "type": type(self).__name__,
            "message": self.message,
            "fix": self.fix,
            "context": {k: str(v) for k, v in self.context.items()},
        }


# --- what the user asked for -------------------------------------------------------------------


class ConfigError(OstinatoError, ValueError):
    """A setting is out of range, unknown or contradicts another."""

    code = "OST100"


class UnknownNameError(ConfigError):
    """A name is not in its registry; the message lists the valid ones and the nearest."""

    code = "OST101"

    @classmethod
    def of(cls, kind: str, name: str, valid: list[str]) -> UnknownNameError:
        """Build the error for ``name``, a ``kind`` that is not among ``valid``."""
        import difflib

        near = difflib.get_close_matches(name, valid, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return cls(f"unknown {kind} {name!r}", fix=f"{hint}valid: {', '.join(sorted(valid))}")


class DeviceUnavailableError(ConfigError):
    """The device asked for is not on this machine, or another one is current."""

    code = "OST102"


class TargetError(ConfigError):
    """A callable that a tool should examine cannot be found, built or run on its own example."""

    code = "OST103"


class ForeignCostsError(ConfigError):
    """A file of measured costs is of another device, model, dtype or version, or its times mean something else (they
    were taken in another way, or its format is another): it says nothing here."""

    code = "OST104"


# --- runtime: capture --------------------------------------------------------------------------


class CaptureError(OstinatoError, RuntimeError):
    """A capture could not be made. The first error is kept as ``__cause__`` where there is one."""

    code = "OST200"


class CaptureNotAllowedError(CaptureError):
    """Capture was tried outside the capture phase (in the middle of serving, say)."""

    code = "OST201"


class HostSyncError(CaptureError):
    """An op would make the host wait for the device (``.item()``, ``.cpu()``, ``print``) in a capture."""

    code = "OST202"


class DynamicShapeError(CaptureError):
    """An op's output shape depends on data (``nonzero``, boolean masks) in a capture."""

    code = "OST203"


class JitInCaptureError(CaptureError):
    """A kernel would compile, autotune or load for the first time in a capture."""

    code = "OST204"


class NestedCaptureError(CaptureError):
    """A capture was begun while another is open on this thread."""

    code = "OST205"


class UnbrokenOpError(CaptureError):
    """An op that needs a break was recorded inside a segment of a piecewise graph."""

    code = "OST207"


class UntraceableError(CaptureError):
    """A compiler cannot trace the callable (Dynamo graph break, data-dependent shape, unknown op)."""

    code = "OST208"


class UntraceableBreakError(UntraceableError):
    """A marked function cannot become a custom op; the breakable partition would work."""

    code = "OST209"


class UnsupportedPartitionError(CaptureError):
    """The installed torch or the device cannot do the partition that was asked for."""

    code = "OST210"


class UnjoinedStreamError(CaptureError):
    """Work of a capture is on a stream that was not forked from it, or not joined again; or it waits for other work."""

    code = "OST211"


class UnknownGeneratorError(CaptureError):
    """An op of a capture draws from a random generator that no warm-up run has drawn from."""

    code = "OST212"


# --- runtime: replay ---------------------------------------------------------------------------


class GuardError(OstinatoError, RuntimeError):
    """A replay would have given a wrong answer; it was refused."""

    code = "OST300"


class AddressChangedError(GuardError):
    """A tensor that a graph reads has moved since capture."""

    code = "OST301"


class InputSpecError(GuardError, ValueError):
    """An input's rank, shape, dtype or device differs from what the slot declares."""

    code = "OST302"


class BreakOutputError(GuardError):
    """A break returned another shape, rank, dtype, device or structure than at capture."""

    code = "OST303"


class StaleOutputError(GuardError):
    """A view of a graph's output was used after a later replay, which may have overwritten it."""

    code = "OST304"


class FrozenValueError(GuardError):
    """A break's argument that is no tensor changes from run to run, and a replay would go on with the captured one."""

    code = "OST305"


class TensorReboundError(AddressChangedError):
    """A parameter, buffer or attribute that a graph reads was replaced by another tensor since capture."""

    code = "OST306"


class TensorDroppedError(AddressChangedError):
    """A tensor that a graph reads is referred to by nobody any more: its owner let go, or put another in its place."""

    code = "OST307"


class QualificationError(GuardError):
    """A captured graph does not do what an eager run does, or a test batch cannot be run, or there was none."""

    code = "OST308"


class WorkspaceGrowthError(GuardError):
    """A workspace whose address a graph has would grow, hence move; or it would grow in a capture."""

    code = "OST309"


class RuntimeStateError(OstinatoError, RuntimeError):
    """A life-cycle step was called out of order (plan, warm_up, capture, replay, close)."""

    code = "OST310"


class ClosedError(RuntimeStateError):
    """The object was closed; its graphs and pools are gone."""

    code = "OST311"


class AsleepError(RuntimeStateError):
    """The engine sleeps: its graphs, and where that can be the memory of its cache, were given back."""

    code = "OST312"


# --- engine ------------------------------------------------------------------------------------


class EngineError(OstinatoError, RuntimeError):
    """The engine cannot go on with what it was given."""

    code = "OST400"


class ModelNotFoundError(EngineError):
    """No source has the model: local path, cache, hub or package index."""

    code = "OST401"


class CheckpointError(EngineError):
    """A checkpoint is incomplete or corrupt: missing shard, missing tensor, bad header or checksum."""

    code = "OST402"


class UnsupportedArchitectureError(EngineError):
    """The config names a model family that this engine does not have."""

    code = "OST403"


class OutOfMemoryError(EngineError):
    """Weights, KV pages and graphs do not fit; the message says which knob gives how much."""

    code = "OST404"


class UnwritableCacheError(EngineError):
    """The cache folder cannot be written."""

    code = "OST405"


class PageIntegrityError(EngineError):
    """The page allocator's books do not add up: a page lost, shared by mistake or freed twice."""

    code = "OST406"

    def __init__(
        self,
        message: str,
        *,
        fix: str = "restart the engine and report this: no request may cause it",
        **context: Any,
    ) -> None:
        super().__init__(message, fix=fix, **context)


class StepFailedError(EngineError):
    """The step that a request was in failed, with all its requests; the cause is kept. The engine goes on."""

    code = "OST407"


class EngineDeadError(EngineError):
    """The device or the engine's own books can no longer be trusted: every request ended, and no more are taken."""

    code = "OST408"


class RequestError(OstinatoError, ValueError):
    """One request is bad (too long, empty, token ids or parameters out of range). Others are unharmed."""

    code = "OST500"
