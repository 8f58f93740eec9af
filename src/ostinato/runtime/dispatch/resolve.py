"""The mode matrix: what the asked mode, partition and compiler become here, with a reason for each change, and as
what the steps of each phase then run.

One pure function, run once at start. No torch: what depends on the machine comes in as plain values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.keys import CaptureSupport, Compiler, Mode, Partition, Phase, RuntimeMode

__all__ = ["ModeRequest", "ResolvedMode", "SettingChange", "resolve_mode"]

_RUNS: Final = {
    # mode: (decode, mixed)
    Mode.NONE: (RuntimeMode.EAGER, RuntimeMode.EAGER),
    Mode.PIECEWISE: (RuntimeMode.PIECEWISE, RuntimeMode.PIECEWISE),
    Mode.FULL: (RuntimeMode.FULL, RuntimeMode.FULL),
    Mode.FULL_DECODE_ONLY: (RuntimeMode.FULL, RuntimeMode.EAGER),
    Mode.FULL_AND_PIECEWISE: (RuntimeMode.FULL, RuntimeMode.PIECEWISE),
}
"""The steps of each phase, in every mode that a request can resolve to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRequest:
    """What was asked, and the facts that decide."""

    mode: Mode
    partition: Partition = Partition.BREAKABLE
    compiler: Compiler = Compiler.NONE
    support: CaptureSupport = CaptureSupport.ALWAYS
    """Weakest level among the attention that the callable runs."""
    uniform_query_len: int = 1
    """Tokens a request brings in uniform decode: 1 + draft length."""
    num_active_loras: int = 0
    """Adapters that are active in the steps that are asked about. Graphs are planned for steps without any."""
    knows_requests: bool = False
    """Whether batches declare requests. If not, all batches are alike and "decode" has no meaning."""
    full_mixed_max_tokens: int = 0
    """See `GraphConfig`."""
    device_type: str = "cuda"

    @classmethod
    def of(
        cls, config: GraphConfig, *, support: CaptureSupport, device_type: str, num_active_loras: int = 0
    ) -> ModeRequest:
        """What ``config`` asks of a callable with this attention on this device."""
        return cls(
            mode=Mode(config.mode),
            partition=Partition(config.partition),
            compiler=Compiler(config.compile),
            support=support,
            uniform_query_len=max(config.uniform_query_lens),
            num_active_loras=num_active_loras,
            knows_requests=config.max_num_reqs is not None,
            full_mixed_max_tokens=config.full_mixed_max_tokens,
            device_type=device_type,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting that is not what was asked, under its name in `GraphConfig`."""

    setting: str
    asked: str | int
    resolved: str | int
    why: str

    def __str__(self) -> str:
        return self.why if self.setting == "mode" else f"{self.setting} {self.asked} is {self.resolved}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedMode:
    """What is in force, and why it is not what was asked.

    ``full_mixed_max_tokens``: mixed steps of up to so many tokens have full graphs beside what `runtime_mode` says.
    """

    asked: Mode
    mode: Mode
    partition: Partition
    compiler: Compiler
    full_mixed_max_tokens: int = 0
    changes: tuple[SettingChange, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """One for each change."""
        return tuple(map(str, self.changes))

    @property
    def reason(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons) or "as asked"

    @property
    def mode_reason(self) -> str:
        """Why the mode is what it is; `changes` has the other settings."""
        return next((change.why for change in self.changes if change.setting == "mode"), "as asked")

    def runtime_mode(self, phase: Phase) -> RuntimeMode:
        """What a step of ``phase`` runs as, within the largest bucket. Where no batch is known to be a decode, the
        same for both."""
        decode, mixed = _RUNS[self.mode]
        return decode if phase is Phase.DECODE else mixed

    @property
    def runtime_modes(self) -> tuple[RuntimeMode, ...]:
        """Those that graphs are captured for."""
        full = (RuntimeMode.FULL,) if self.mode not in (Mode.NONE, Mode.PIECEWISE) else ()
        return full + ((RuntimeMode.PIECEWISE,) if self.mode in (Mode.PIECEWISE, Mode.FULL_AND_PIECEWISE) else ())

    @property
    def is_traced(self) -> bool:
        """Whether the callable is traced, in the first run of a key: a second one runs what came of it."""
        return self.partition is not Partition.BREAKABLE or self.compiler is not Compiler.NONE

    @property
    def is_compiled(self) -> bool:
        """Whether kernels are generated, whose bits need not be those of an eager run."""
        return self.partition is Partition.INDUCTOR or self.compiler is not Compiler.NONE


def resolve_mode(request: ModeRequest) -> ResolvedMode:
    """The mode, partition and compiler that ``request`` gets."""
    reasons: list[str] = []
    mode = _resolve_mode(request, reasons)
    changes = [SettingChange(setting="mode", asked=request.mode, resolved=mode, why=why) for why in reasons]
    partition, compiler, small = request.partition, request.compiler, request.full_mixed_max_tokens
    if request.device_type == "cpu" and partition is Partition.INDUCTOR:
        partition, why = Partition.FX, "on a CPU every Inductor kernel would be a break"
        changes.append(SettingChange(setting="partition", asked=request.partition, resolved=partition, why=why))
    if compiler is Compiler.INDUCTOR and (why := _why_uncompiled(request, mode)):
        compiler = Compiler.NONE
        changes.append(SettingChange(setting="compile", asked=request.compiler, resolved=compiler, why=why))
    if mode is not Mode.FULL_AND_PIECEWISE:
        small = 0
    elif small and request.support is not CaptureSupport.ALWAYS:
        why = f"attention supports {request.support.name}, so small mixed batches run piecewise too"
        changes.append(SettingChange(setting="full_mixed_max_tokens", asked=small, resolved=0, why=why))
        small = 0
    return ResolvedMode(
        asked=request.mode,
        mode=mode,
        partition=partition,
        compiler=compiler,
        full_mixed_max_tokens=small,
        changes=tuple(changes),
    )


def _why_uncompiled(request: ModeRequest, mode: Mode) -> str:
    if request.device_type == "cpu":
        # They bypass the dispatcher.
        return "simulated graphs cannot record Inductor's CPU kernels"
    if mode is Mode.PIECEWISE and request.partition is Partition.BREAKABLE:
        return "breakable segments are recorded as the callable runs them"
    return ""


def _resolve_mode(request: ModeRequest, reasons: list[str]) -> Mode:
    asked, support = request.mode, request.support
    if asked is not Mode.NONE and request.num_active_loras:
        reasons.append(f"no graph is planned for {request.num_active_loras} active adapters: such steps run eagerly")
        return Mode.NONE
    if asked in (Mode.NONE, Mode.PIECEWISE):
        return asked
    if not _runs_uniform_decode(request):
        # Breaks need no compiler, so piecewise graphs are always there to fall back to.
        reasons.append(_why_no_decode_graph(request))
        return Mode.PIECEWISE
    if not request.knows_requests:
        return _without_requests(request, reasons)
    if asked is Mode.AUTO:
        reasons.append(f"attention supports {support.name}")
        return Mode.FULL_AND_PIECEWISE
    if asked is Mode.FULL and support is not CaptureSupport.ALWAYS:
        reasons.append(f"attention supports {support.name}: mixed batches run piecewise")
        return Mode.FULL_AND_PIECEWISE
    return asked


def _runs_uniform_decode(request: ModeRequest) -> bool:
    if request.uniform_query_len == 1:
        return request.support >= CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE
    return request.support >= CaptureSupport.UNIFORM_BATCH


def _why_no_decode_graph(request: ModeRequest) -> str:
    if request.support is CaptureSupport.NEVER:
        return "attention cannot run inside a graph (NEVER)"
    return f"attention supports {request.support.name}, and decode brings {request.uniform_query_len} tokens a request"


def _without_requests(request: ModeRequest, reasons: list[str]) -> Mode:
    if request.support is not CaptureSupport.ALWAYS:
        reasons.append(f"attention supports {request.support.name}, and no batch is known to be a decode")
        return Mode.PIECEWISE
    if request.mode is Mode.FULL_AND_PIECEWISE:
        reasons.append("the callable declares no requests, so no batch is a decode")
        return Mode.PIECEWISE
    if request.mode is Mode.FULL_DECODE_ONLY:
        reasons.append("the callable declares no requests, so every batch is alike")
    if request.mode is Mode.AUTO:
        reasons.append("one graph a size is the fastest")
    return Mode.FULL
