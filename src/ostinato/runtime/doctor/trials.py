"""Which modes work as the code stands, and which after the suggested breaks: the order of trial captures.

Starts from what the probe found; a capture that fails where it found nothing adds a blocker. With blockers, sets
of breaks are tried, best first, until one is captured and replays right. Called by `diagnose` once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ostinato.errors import CaptureError, DynamicShapeError, HostSyncError, JitInCaptureError
from ostinato.runtime.doctor.findings import ModeOutcome, SuggestedBreak
from ostinato.runtime.doctor.frames import Stack
from ostinato.runtime.doctor.judge import Judged
from ostinato.runtime.doctor.record import Run
from ostinato.runtime.doctor.routing import routed, searchable_heap
from ostinato.runtime.doctor.suggest import BreakSet, break_sets, in_root
from ostinato.runtime.doctor.trial import Example, TrialFailure, try_mode
from ostinato.runtime.keys import Compiler, Partition
from ostinato.runtime.ops import BlockReason, OpRule, Verdict
from ostinato.runtime.ops.rules import (
    CONTROL_FLOW_RULE,
    FUNCTION_RULES,
    HOST_LENGTH_RULE,
    JIT_EVERY_CALL_RULE,
    OP_RULES,
)

__all__ = ["Trials"]

_RULES: dict[type[CaptureError], OpRule] = {
    HostSyncError: FUNCTION_RULES["Tensor.item"],
    DynamicShapeError: OP_RULES["aten::nonzero"],
    JitInCaptureError: JIT_EVERY_CALL_RULE,
}
"""What stopped a capture -> what to say of it."""
_MAX_TRIES = 6  # break sets that are captured
_LARGE_BREAK = 0.5  # of all ops: more outside of graphs deserves advice


class Trials:
    """Runs the trials of one callable; `run` fills the results.

    Args:
        judged: what the probe found; trials may add to it.
        run: the first run under the probe.
        modes: which to try.
        partition, compiler, compares: see `try_mode`.
    """

    def __init__(
        self,
        example: Example,
        judged: list[Judged],
        run: Run,
        *,
        modes: Sequence[str],
        partition: Partition,
        compiler: Compiler,
        compares: bool,
    ) -> None:
        self.judged = judged
        self.outcomes: dict[str, ModeOutcome] = {}
        self.suggested: tuple[SuggestedBreak, ...] = ()
        self.advice: list[str] = []
        self._example = example
        self._run = run
        self._modes = modes
        self._try_mode = partial(try_mode, example=example, partition=partition, compiler=compiler, compares=compares)

    def run(self) -> None:
        """Fill `outcomes` in the order of the modes, `suggested` and `advice`."""
        found: dict[str, ModeOutcome] = {}
        if "full" in self._modes:
            found["full"] = self._try_full()
        split = [mode for mode in ("breakable", "piecewise") if mode in self._modes]
        if split and not self._blockers():
            found["breakable"] = self._try_as_it_is("breakable")
        if self._blockers():
            found |= self._mend(split)
        for mode in split:
            if mode not in found:
                found[mode] = self._try_as_it_is(mode)
        is_blocked = bool(self._blockers())
        self.outcomes = {
            mode: replace(found[mode], holds_blockers=is_blocked and not found[mode].with_suggested_breaks)
            for mode in self._modes
        }
        self._advise_on_attention()

    def _blockers(self) -> list[Stack]:
        return [one.stack for one in self.judged if one.verdict is Verdict.UNFRIENDLY]

    def _try_full(self) -> ModeOutcome:
        outcome, failure = self._try("full")
        # In a declared break, a failure blocks no other mode.
        if failure is not None and not (self._run.breaks and self._example.honours_breaks):
            self._learn(failure)
        inside = {
            f"it captures break {one.in_break} too, where {one.op} is a {one.rule.reason.value}"
            for one in self.judged
            if one.in_break and one.rule is not None and one.rule.verdict is Verdict.UNFRIENDLY
        }
        return replace(outcome, warnings=(*outcome.warnings, *sorted(inside)))

    def _try_as_it_is(self, mode: str) -> ModeOutcome:
        outcome, failure = self._try(mode)
        if failure is not None and mode == "breakable":  # what a tracer cannot follow may still be captured
            self._learn(failure)
        return outcome

    def _try(self, mode: str, chosen: BreakSet | None = None) -> tuple[ModeOutcome, TrialFailure | None]:
        warnings = [] if mode == "full" else self._attention_warnings(chosen)
        if chosen is None:
            return self._try_mode(mode, warnings=warnings)
        with routed(chosen.routes):
            return self._try_mode(mode, with_breaks=True, warnings=warnings)

    def _learn(self, failure: TrialFailure) -> None:
        """Add what stopped a capture, unless the probe has seen it there."""
        place = failure.stack.place
        if any(one.stack.place == place for one in self.judged if one.verdict is Verdict.UNFRIENDLY):
            return
        rule = next((rule for kind, rule in _RULES.items() if isinstance(failure.error, kind)), CONTROL_FLOW_RULE)
        op = str(getattr(failure.error, "context", {}).get("op", "capture"))
        detail = f"the capture stopped here: {str(failure.error).partition(chr(10))[0]}"
        self.judged.append(Judged(op, rule, failure.stack, detail=detail))

    def _mend(self, modes: Sequence[str]) -> dict[str, ModeOutcome]:
        """Try sets of breaks in the first of ``modes``; outcomes with the first set that works, or none."""
        blockers, records = self._blockers(), self._run.records
        with searchable_heap():
            rootless = in_root(blockers, records)
            sets = break_sets(blockers, records)
        for stack in dict.fromkeys(rootless):
            self._advise_to_move(stack)
        if self.advice:
            self.suggested = sets[0].suggestions() if sets else ()
            return {}
        if not modes or not sets:
            if sets and not any(route.code in self._run.marked for route in sets[0].routes):
                self.suggested = sets[0].suggestions()
            return {}
        first, *others = modes
        for chosen in sets[:_MAX_TRIES]:
            outcome, _ = self._try(first, chosen)
            if outcome.works and outcome.num_nodes:
                self.suggested = chosen.suggestions()
                self._advise_on_size(chosen, blockers)
                return {first: outcome, **{mode: self._try(mode, chosen)[0] for mode in others}}
        self.advice.append(
            "no set of marks on existing functions makes it work: let one function both make and use what depends on "
            "the data, return tensors of fixed shapes from it, and mark it with @graph_break"
        )
        return {}

    def _advise_on_size(self, chosen: BreakSet, blockers: Sequence[Stack]) -> None:
        """A break that takes in most of the work mends little: name the lines that a smaller one would need."""
        num_ops = len(self._run.records)
        if chosen.num_ops_outside <= num_ops * _LARGE_BREAK:
            return
        self.advice.append(
            f"the suggested breaks leave {chosen.num_ops_outside} of {num_ops} ops outside of graphs; smaller ones do "
            "better:"
        )
        for stack in dict.fromkeys(blockers):
            self._advise_to_move(stack)

    def _advise_to_move(self, stack: Stack) -> None:
        place = stack.place
        where = "the line" if place is None else f"line {place.line} of {place.file}"
        ops = {one.op: None for one in self.judged if one.stack == stack and one.verdict is Verdict.UNFRIENDLY}
        self.advice.append(
            f"move {where} ({', '.join(ops)}), and what needs its result on the host, into a function of its own "
            "and mark it with @graph_break"
        )

    def _unbroken(self, chosen: BreakSet | None) -> list[Judged]:
        """Attention outside of declared and chosen breaks."""
        marked = set() if chosen is None else {route.code for route in chosen.routes}
        return [
            one
            for one in self.judged
            if one.rule is not None
            and (one.rule.reason is BlockReason.MIXES_ROWS or one.rule is HOST_LENGTH_RULE)
            and not one.in_break
            and not any(frame.code in marked for frame in one.stack.frames)
        ]

    def _attention_warnings(self, chosen: BreakSet | None) -> list[str]:
        calls = self._unbroken(chosen)
        if not calls:
            return []
        return [
            f"{len(calls)} attention calls are captured in segments: set unbroken_attention='allow', if padded rows "
            "are rows of their own, or mark the function that calls attention with @graph_break"
        ]

    def _advise_on_attention(self) -> None:
        for one in self._unbroken(None):
            place = one.stack.place
            if one.rule is HOST_LENGTH_RULE and place is not None:
                line = (
                    f"{one.op} at {place.file}:{place.line} takes a length on the host, which a capture freezes: "
                    "mark the function that calls it with @graph_break"
                )
                if line not in self.advice:
                    self.advice.append(line)
