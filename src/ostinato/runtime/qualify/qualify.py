"""Qualification: every key's replay against eager, on padded and poisoned batches, with all that it writes.

For each case the state is put into one starting condition, and the batch is run three times from it: eagerly at the
padded shape (the reference: same kernels, so simulated replays must have its bits), eagerly on the live rows alone
(shows rows that depend on each other or on how many there are), and as a replay, with the graph's own outputs and
bridges overwritten beforehand. Then the key is captured anew on two batches to see which host values that freezes.
Changes nothing for good: state and random generators are put back. Called by `Graphed.qualify`, which quarantines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

import torch

from ostinato.errors import FrozenValueError, OstinatoError, QualificationError
from ostinato.runtime.buffers import live_sizes
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.qualify.baked import baked_calls, baked_differences
from ostinato.runtime.qualify.bisect import Culprit, bisect_plan
from ostinato.runtime.qualify.break_arguments import run_watched
from ostinato.runtime.qualify.cases import Case, QualificationCases, WatchesMore
from ostinato.runtime.qualify.poison import poison_plan, poison_tails
from ostinato.runtime.qualify.report import Finding, FindingKind, KeyReport, QualificationReport
from ostinato.runtime.qualify.runs import fastest
from ostinato.runtime.qualify.states import checksum, state_fault
from ostinato.runtime.qualify.subject import Subject
from ostinato.runtime.qualify.trace import EagerTrace, mixing_op, trace_eager
from ostinato.runtime.runners import CapturedPlan, Snapshot, find_gap, has_same_bits, run_eager, state_kept

T = TypeVar("T")

__all__ = ["SLOWER_RATIO", "bisect_key", "qualify_keys"]

SLOWER_RATIO: Final = 1.1
"""A replay that takes longer than this multiple of eager is warned of: its launch topology may be frozen badly."""
_CLOCK_SECONDS: Final = 20e-6
"""A step that is slower by less is not told from one that is not."""


def qualify_keys(
    subject: Subject,
    keys: Iterable[GraphKey],
    cases: QualificationCases | None,
    *,
    seed: int = 0,
    on_key: Callable[[KeyReport], None] | None = None,
) -> QualificationReport:
    """Try ``keys``, all of which are captured.

    Args:
        cases: None makes random batches up.
        seed: of these.
        on_key: told of each key when it is done.

    Raises:
        QualificationError: the callable itself fails on a case.
    """
    report = QualificationReport(backend=subject.backend.name, is_bitwise=subject.is_bitwise)
    if cases is None:
        report.notes += subject.untried()
        cases = subject.random_cases(seed)
    began = time.perf_counter()
    state = cases.state()
    unwritten = cases.unwritten() if isinstance(cases, WatchesMore) else {}
    with state_kept({**state, "(static buffers)": subject.wrapped.buffers.arena}):
        for key in keys:
            report.keys.append(_Trial(subject, key, list(cases.of(key)), state, unwritten).run())
            if on_key is not None:
                on_key(report.keys[-1])
    report.seconds = time.perf_counter() - began
    return report


def bisect_key(subject: Subject, key: GraphKey, cases: QualificationCases | None, *, seed: int = 0) -> list[Culprit]:
    """The entries of ``key`` that go wrong, first one first, on the first case that shows any; or the op that lets
    padded rows reach live ones, in eager runs as well."""
    cases = cases or subject.random_cases(seed)
    state = cases.state()
    with state_kept({**state, "(static buffers)": subject.wrapped.buffers.arena}):
        trial = _Trial(subject, key, [], state, {})
        for case in cases.of(key):
            culprits = trial.bisect(case)
            if culprits:
                return culprits
        leaks = (trial.leak(case) for case in cases.of(key))
        return [leak for leak in leaks if leak is not None][:1]


class _Trial:
    """One key."""

    def __init__(
        self,
        subject: Subject,
        key: GraphKey,
        cases: list[Case],
        state: Mapping[str, torch.Tensor],
        unwritten: Mapping[str, torch.Tensor],
    ) -> None:
        self._subject = subject
        self._key = key
        self._plan = subject.captured.plan_of(key)
        self._call = subject.wrapped.bind(key)
        self._cases = cases
        self._state = state
        self._start = Snapshot(state)
        self._unwritten = unwritten
        self._checksums = {name: checksum(tensor) for name, tensor in unwritten.items()}
        self._device = subject.wrapped.device
        self._rewritten: set[int] | None = None
        self._seconds: dict[str, list[float]] = {}  # kind -> replayed, eager
        self.report = KeyReport(key=key, num_state_tensors=len(state))

    def run(self) -> KeyReport:
        if self._cases:
            self._look_for_frozen_arguments()  # first of all: what it finds names the cause of what the rest finds
        for case in self._cases:
            self._run_case(case)
        if self._cases:
            self._look_for_baked_values()
        for kind, (replayed, eager) in self._seconds.items():
            ratio = self.report.time_ratios[kind] = replayed / eager if eager else 1.0
            is_measurable = replayed - eager > _CLOCK_SECONDS * self.report.num_cases
            if ratio > SLOWER_RATIO and is_measurable:
                told = f" on {kind}" if kind else ""
                self.report.warnings.append(f"slower: a replay takes {ratio:.2f} times as long as eager{told}")
        return self.report

    def bisect(self, case: Case) -> list[Culprit]:
        """Culprits on one case."""
        num_live = case.live.num_tokens
        trace = self._from_start(case, lambda: self._traced(num_live))
        self._find_rewritten(case, trace.addresses)
        self._ready(case)
        self._poison_own(case, trace.addresses)
        with self._subject.seeded():
            return bisect_plan(self._plan, trace, num_live=num_live, is_exact=self._subject.is_bitwise)

    def leak(self, case: Case) -> Culprit | None:
        """The op of the callable itself that mixes rows, if live outputs show it without any graph."""
        expected = self._from_start(case, lambda: _copied(case.cut(run_eager(self._call))))
        for run, is_repadded in ((case.exact and self._alone, False), (case.repad and self._repadded, True)):
            gap = None
            if run is not None:
                is_exact = is_repadded and self._subject.is_bitwise
                gap, _ = find_gap(expected, run(case), is_exact=is_exact, is_other_shape=not is_repadded)
            if gap is not None:
                where = self._where_rows_mix(case, is_repadded=is_repadded)
                return Culprit(op=where, what=f"live output{gap.path} depends on padded rows: {gap.detail}")
        return None

    # --- one case ------------------------------------------------------------------------------

    def _run_case(self, case: Case) -> None:
        report = self.report
        report.num_cases += 1
        self._ready(case)
        before = Snapshot(self._state)
        try:
            outputs, eager_seconds = fastest(partial(run_eager, self._call), self._subject, restore=before.restore)
            expected = _copied(case.cut(outputs))
            by_eager = Snapshot(self._state)
            alone = None if case.exact is None else self._alone(case)
            by_alone = by_eager if alone is None else Snapshot(self._state)
            repadded = None if case.repad is None else self._repadded(case)
        except Exception as error:
            raise self._failed(case, error) from error
        lasting = _addresses(outputs)
        self._find_rewritten(case, lasting)
        self._ready(case)
        self._poison_own(case, lasting)
        replay = partial(self._plan.replay, case.live.num_tokens)
        try:
            self._subject.captured.check_all(self._key)
            outputs, replay_seconds = fastest(replay, self._subject, restore=before.restore)
        except OstinatoError as error:
            self._add(FindingKind.REFUSED, case, f"the replay raised {error}", lambda: "")
            return
        got = _copied(case.cut(outputs))
        by_replay = Snapshot(self._state)
        self._note_time(case.kind, replay_seconds, eager_seconds)

        is_bitwise = self._subject.is_bitwise
        gap, report_gap = find_gap(expected, got, is_exact=is_bitwise)
        report.max_gap = max(report.max_gap, report_gap)
        if gap is not None:
            self._add(
                FindingKind.DIFFERS, case, f"live output{gap.path}: {gap.detail}", lambda: _first(self.bisect(case))
            )
        if alone is not None:
            leak, alone_gap = find_gap(alone, expected, is_exact=False, is_other_shape=True)
            report.max_gap_unpadded = max(report.max_gap_unpadded, alone_gap)
            if leak is not None:
                what = f"live output{leak.path} is another without padded rows: {leak.detail}"
                self._add(FindingKind.PADDING_LEAKS, case, what, lambda: self._where_rows_mix(case))
        if repadded is not None:
            leak, _ = find_gap(expected, repadded, is_exact=is_bitwise)
            if leak is not None:
                what = f"live output{leak.path} is another with other values in padded rows: {leak.detail}"
                where = partial(self._where_rows_mix, case, is_repadded=True)
                self._add(FindingKind.PADDING_LEAKS, case, what, where)
        fault = state_fault(before, by_eager, by_replay, case.writes, is_exact=is_bitwise)
        if fault is None and case.writes and alone is not None:  # what eager writes wrongly too, once rows are padded
            fault = state_fault(before, by_alone, by_replay, case.writes, is_exact=False, is_other_shape=True)
        for name, tensor in self._unwritten.items():
            if fault is None and checksum(tensor) != self._checksums[name]:
                fault = f"{name}: written, where no step may write"
        if fault is not None:
            self._add(FindingKind.STATE_WRITES, case, f"state {fault}", lambda: _first(self.bisect(case)))

    def _failed(self, case: Case, error: Exception) -> QualificationError:
        return QualificationError(
            f"the callable fails on a test batch of {self._key}: {error}",
            fix="pass qualify(cases=...), batches that it can run",
            case=case.name,
        )

    def _ready(self, case: Case) -> None:
        """The static buffers and the state as the case wants them."""
        self._start.restore()
        case.fill()
        wrapped = self._subject.wrapped
        poison_tails(wrapped.buffers, live_sizes(case.live), wrapped.key_sizes(self._key), case.poison)

    def _alone(self, case: Case) -> Any:
        """Live rows without padded ones."""
        assert case.exact is not None
        self._ready(case)
        with self._subject.seeded():
            return _copied(run_eager(case.exact))

    def _repadded(self, case: Case) -> Any:
        """Live rows beside padded ones that hold something else."""
        assert case.repad is not None
        self._ready(case)
        case.repad()
        with self._subject.seeded():
            return _copied(case.cut(run_eager(self._call)))

    def _from_start(self, case: Case, run: Callable[[], T]) -> T:
        self._ready(case)
        with self._subject.seeded():
            return run()

    def _traced(self, num_live: int) -> EagerTrace:
        plan = self._plan if self._key.runtime_mode is RuntimeMode.PIECEWISE else None
        return trace_eager(self._call, plan, num_live=num_live, num_rows=self._key.num_tokens)

    def _where_rows_mix(self, case: Case, *, is_repadded: bool = False) -> str:
        """The first op whose live rows change when padded rows are left out, or hold something else."""
        exact, num_live = case.exact, case.live.num_tokens
        padded = self._from_start(case, lambda: self._traced(num_live))
        if is_repadded:
            self._ready(case)
            assert case.repad is not None
            case.repad()
            with self._subject.seeded():
                other = self._traced(num_live)
        elif exact is not None:
            other = self._from_start(case, lambda: trace_eager(exact, None, num_live=num_live, num_rows=num_live))
        else:
            return ""
        return mixing_op(other, padded, num_live=num_live, num_rows=self._key.num_tokens)

    def _find_rewritten(self, case: Case, lasting: set[int]) -> None:
        """Which of the outputs that eager returns at an address of the plan it writes anew each time (a buffer that
        the callable keeps for its results), unlike a weight or an input: found once, by a run that finds them
        overwritten. Without it, a replay that writes nothing would leave what eager has left there."""
        if self._rewritten is not None:
            return
        self._rewritten = set()
        kept = {t.untyped_storage().data_ptr() for t in (*self._state.values(), self._subject.wrapped.buffers.arena)}
        shared = [t for t in tensors(self._plan.outputs) if t.untyped_storage().data_ptr() in lasting - kept]
        if not shared:
            return
        before = Snapshot({str(number): tensor for number, tensor in enumerate(shared)})
        self._from_start(case, partial(run_eager, self._call))
        first = [tensor.clone() for tensor in shared]
        self._ready(case)
        poison_plan(self._plan, shared, case.poison)
        with self._subject.seeded():
            run_eager(self._call)
        for tensor, expected in zip(shared, first, strict=True):
            if has_same_bits(tensor, expected):
                self._rewritten.add(tensor.untyped_storage().data_ptr())
        before.restore()

    def _poison_own(self, case: Case, lasting: set[int]) -> None:
        """Overwrite bridges, and outputs but for those that no replay has to write: at an address at which eager
        returns them too (``lasting``), and not rewritten there; and state."""
        kept = lasting - (self._rewritten or set())
        kept |= {t.untyped_storage().data_ptr() for t in (*self._state.values(), self._subject.wrapped.buffers.arena)}
        outputs = [t for t in tensors(self._plan.outputs) if t.untyped_storage().data_ptr() not in kept]
        poison_plan(self._plan, outputs, case.poison)

    def _note_time(self, kind: str, replayed: float, eager: float) -> None:
        sums = self._seconds.setdefault(kind, [0.0, 0.0])
        sums[0] += replayed
        sums[1] += eager

    def _add(self, kind: FindingKind, case: Case | None, what: str, find: Callable[[], str]) -> None:
        """Enter the first finding of a kind; looking for its place costs more runs."""
        if any(known.kind is kind for known in self.report.findings):
            return
        try:
            where = find()
        except Exception as error:  # the finding stands without its place
            where = ""
            self.report.warnings.append(f"the place of {kind} could not be found: {error}")
        name = case.name if case is not None else ""
        self.report.findings.append(Finding(kind=kind, what=what, where=where, case=name))

    # --- baked values --------------------------------------------------------------------------

    def _look_for_frozen_arguments(self) -> None:
        """Hold what the callable gives its breaks now against what a replay gives them, on the first and last case."""
        for case in (self._cases[0], self._cases[-1]) if self._plan.break_steps else ():
            try:
                _, changed = self._from_start(case, lambda: run_watched(self._call, self._plan))
            except Exception as error:
                raise self._failed(case, error) from error
            if changed is not None:
                self._add_frozen(case, changed)

    def _add_frozen(self, case: Case, error: FrozenValueError) -> None:
        self._add(FindingKind.BAKED_VALUE, case, str(error), lambda: str(error.context.get("source", "")))

    def _look_for_baked_values(self) -> None:
        """Capture on the first and on the last case; on a device, on the first one twice."""
        first, last = self._cases[0], self._cases[-1]
        with ExitStack() as stack:
            try:
                with self._subject.backend.phase():
                    one = self._captured_on(first, stack)
                    again = None if self._subject.is_bitwise else baked_calls(self._captured_on(first, stack))
                    other = self._captured_on(last, stack)
            except FrozenValueError as error:
                self._add_frozen(last, error)
                return
            except OstinatoError as error:
                self.report.warnings.append(f"not looked for baked values: a capture on a live batch failed: {error}")
                return
            calls = baked_calls(one)
            found = list(baked_differences(calls, baked_calls(other), again=again))
            if self._subject.is_bitwise:  # recordings compare as they are; on a device the addresses of a pool move
                found += baked_differences(calls, baked_calls(self._plan))
            certain = [difference for difference in found if not difference.is_word]
            if certain or (found and (self._differs(one, last) or self._differs(other, first))):
                worst = (certain or found)[0]
                self._add(FindingKind.BAKED_VALUE, last, worst.what, lambda: worst.where)
            elif found:
                self.report.warnings.append(
                    f"{len(found)} words of kernel parameters differ between captures on two batches, and either graph "
                    f"is right on both: bytes that no kernel reads, or a limit that suits both ({found[0].where})"
                )

    def _captured_on(self, case: Case, stack: ExitStack) -> CapturedPlan:
        self._ready(case)
        with self._subject.seeded():
            plan = self._subject.runs.capture_as_is(self._key)
        stack.callback(plan.close)
        return plan

    def _differs(self, plan: CapturedPlan, case: Case) -> bool:
        """Whether ``plan``, captured on another batch, is wrong on this one."""
        self._ready(case)
        before = Snapshot(self._state)
        with self._subject.seeded():
            expected = _copied(case.cut(run_eager(self._call)))
        by_eager = Snapshot(self._state)
        self._ready(case)
        with self._subject.seeded():
            got = _copied(case.cut(plan.replay(case.live.num_tokens)))
        is_exact = self._subject.is_bitwise
        gap, _ = find_gap(expected, got, is_exact=is_exact)
        fault = state_fault(before, by_eager, Snapshot(self._state), case.writes, is_exact=is_exact)
        return gap is not None or fault is not None


def _addresses(result: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(result)}


def _copied(result: Any) -> Any:
    return map_tensors(result, torch.clone)


def _first(culprits: Sequence[Culprit]) -> str:
    return str(culprits[0]) if culprits else ""
