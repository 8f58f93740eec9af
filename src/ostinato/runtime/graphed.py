"""`Graphed`: the facade. Any PyTorch callable in, a replayable one out.

Owns the life cycle plan -> warm_up -> capture -> replay -> close and nothing of how each step works. Plain
users call it like the callable; an engine writes into `buffers` itself and uses `decide` and `run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from ostinato.errors import RuntimeStateError
from ostinato.runtime.arguments import Arguments, check_budget, check_costs, check_overlap
from ostinato.runtime.assembly import assemble
from ostinato.runtime.breaks import is_planning, is_recording
from ostinato.runtime.buffers import BindCopy, Sizes, Slot, Staging, StaticBuffers
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import CostTable, Decision, Reason, ResolvedMode, StepsToTime
from ostinato.runtime.keys import CaptureSupport, GraphKey, LiveBatch
from ostinato.runtime.memory import Ledger
from ostinato.runtime.planning import SizeSuggestion
from ostinato.runtime.qualify import (
    Culprit,
    KeyReport,
    QualificationCases,
    QualificationReport,
    ShadowCounts,
    ShadowOwner,
)
from ostinato.runtime.resize import ResizeReport
from ostinato.runtime.runners import ArgumentBytes, CapturedPlan, CaptureReport, PlanInspection, add_up, inspect_plan
from ostinato.runtime.stages import Stage
from ostinato.runtime.steps import no_grad
from ostinato.telemetry import DispatchCounters, Sink

__all__ = ["Graphed"]


class Graphed:
    """A callable whose steps are replayed from captured graphs where one fits, and run eagerly where none does.

    Use as a context manager: it owns graphs and fixed buffers.

    Args:
        fn: the callable. Its tensor arguments have one row a token (or request) in dimension 0, and so have its
            results. Rows are independent: a row's result may not depend on other rows or on how many there are,
            since padded rows run along. It writes into no argument.
        example: positional arguments of an example call; fixes names, shapes, dtypes and frozen values.
        example_kwargs: keyword arguments of that call.
        slots: instead of an example: name -> `Slot`, one positional argument each.
        config: modes, sizes, limits.
        device: where it runs; by default where the example's tensors are.
        capture_support: the weakest level among the attention that ``fn`` calls.
        state: a module, tensors, or mappings and lists of these that ``fn`` reads in kernels launched by hand. What it
            reads through torch's ops is found at capture; both are guarded at replay. Random generators that such
            kernels draw from are named here too; those that torch's ops are given are found in warm-up.
        prepare: called before each warm-up run and each capture of a key, to build fresh metadata for it.
        after_warm_up: called once after all warm-up, to undo what it changed in the callable's own state; where the
            callable is traced, before each traced run as well, and once more when `resize` has warmed up.
        shadow: with ``shadow_every``, what its eager runs must know of the callable's state; by default every tensor
            that the callable reaches and that is no parameter is saved and compared whole.
        sinks: more receivers of telemetry events.

    Raises:
        ConfigError: neither or both of example and slots, or sizes that contradict each other.
        DeviceUnavailableError: the device is not on this machine.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        example: tuple[Any, ...] | None = None,
        example_kwargs: dict[str, Any] | None = None,
        slots: Mapping[str, Slot] | None = None,
        config: GraphConfig | None = None,
        device: torch.device | str | None = None,
        capture_support: CaptureSupport = CaptureSupport.ALWAYS,
        state: Any = None,
        prepare: Callable[[GraphKey], None] | None = None,
        after_warm_up: Callable[[], None] | None = None,
        shadow: ShadowOwner | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.config = GraphConfig() if config is None else config
        arguments = Arguments(
            fn=fn,
            example=example,
            example_kwargs=example_kwargs,
            slots=slots,
            config=self.config,
            device=device,
            capture_support=capture_support,
            state=state,
            prepare=prepare,
            after_warm_up=after_warm_up,
            shadow=shadow,
            sinks=sinks,
        )
        parts = assemble(arguments)
        self.counters: DispatchCounters = parts.counters
        self.mode: ResolvedMode = parts.mode
        self.backend: CaptureBackend = parts.backend
        self.device: torch.device = parts.backend.device
        self.buffers: StaticBuffers = parts.wrapped.buffers
        self._bus = parts.bus
        self._wrapped = parts.wrapped
        self._bridges = parts.bridges
        self._life = parts.life
        self._lock = parts.lock
        self._dispatcher = parts.dispatcher
        self._captured = parts.captured
        self._delivery = parts.delivery
        self._runs = parts.runs
        self._service = parts.service
        self._qualifier = parts.qualifier
        self._steps = parts.steps
        self._late = parts.late
        self._recapturing = parts.recapturing
        self._resizing = parts.resizing
        self._measuring = parts.measuring

    # --- life cycle ----------------------------------------------------------------------------

    @property
    def keys(self) -> list[GraphKey]:
        """Planned keys, largest first."""
        return self._dispatcher.keys

    @property
    def plans(self) -> Mapping[GraphKey, CapturedPlan]:
        """Captured keys and their plans."""
        return self._captured.plans

    def warm_up(self, *, on_key: Callable[[GraphKey], None] | None = None) -> Self:
        """Run every planned key eagerly, largest first: JIT, autotune, lazy initialisation, workspaces.

        Args:
            on_key: told of each key when it is done (for a progress bar).
        """
        self._life.require(Stage.PLANNED, Stage.WARM, step="warm_up")
        with self._lock, torch.no_grad():
            self._runs.warm_up_all(self.pending, on_key=on_key)
        if self.config.max_num_reqs is None:  # with requests, an output may have one row a request
            self._delivery.check()
        if self._runs.after_warm_up is not None:
            self._runs.after_warm_up()
        self._life.stage = Stage.WARM
        return self

    def capture(self, *, on_key: Callable[[GraphKey], None] | None = None) -> CaptureReport:
        """Capture every planned key, largest first, into one pool. A key that fails is dropped alone.

        Raises:
            RuntimeStateError: before `warm_up`, or a second time.
            CaptureError: no key at all could be captured; the first key's error is its cause, or is raised
                itself if it is an `OstinatoError` already.
        """
        self._life.require(Stage.WARM, step="capture")
        self.backend.generation.advance()  # what a capture runs writes bridges
        with self._lock, torch.no_grad():
            report = self._service.capture(self._runs.capture, on_key=on_key)
            self._qualifier.start_shadow(self.config.shadow_every)
        self._life.stage = Stage.CAPTURED
        report.require_any()
        return report

    def defer_capture(self) -> Self:
        """Capture nothing now: steps run eagerly, with the reason NOT_CAPTURED_YET, until `capture_late`.

        In place of `warm_up` and `capture`, for a callable that is to serve at once.
        """
        self._life.require(Stage.PLANNED, step="defer_capture")
        self._qualifier.start_shadow(self.config.shadow_every)
        self._life.stage = Stage.CAPTURED
        return self

    @property
    def pending(self) -> list[GraphKey]:
        """Planned keys that wait for their capture, largest first."""
        return self._service.pending()

    def why_blocked(self, key: GraphKey) -> Reason | None:
        """What stands against ``key``; None if steps may use it."""
        return self._dispatcher.why_blocked(key)

    def leave_out(self, keys: Mapping[GraphKey, Reason], *, why: str) -> None:
        """Capture none of ``keys``, for the reason of each; before `warm_up`, or later those that are pending.

        Args:
            keys: planned ones, with what stands against each: CAPTURE_FAILED or QUARANTINED.
            why: how that is known, for events.

        Raises:
            RuntimeStateError: a key is not pending.
        """
        self._life.require_open()
        if other := [key for key in keys if key not in set(self.pending)]:
            raise RuntimeStateError(f"{other[0]} is not pending", fix="leave out keys of `pending`")
        for key, reason in keys.items():
            self._service.leave_out(key, reason, why)

    def retire(self, keys: Sequence[GraphKey], *, why: str) -> None:
        """Plan ``keys`` no longer, and give their graphs back; between two steps.

        Args:
            keys: planned ones, captured or not.
            why: for events.

        Raises:
            RuntimeStateError: a key is not planned.
        """
        self._life.require(Stage.CAPTURED, step="retire")
        planned = set(self.keys)
        if other := [key for key in keys if key not in planned]:
            raise RuntimeStateError(f"{other[0]} is not planned", fix="retire keys of `keys`")
        self.finish_shadow()
        with self._lock:
            self._service.retire(keys, why)

    def capture_late(
        self, keys: Sequence[GraphKey] | None = None, *, on_key: Callable[[GraphKey], None] | None = None
    ) -> CaptureReport:
        """Warm up and capture pending keys between two steps; steps on other threads wait meanwhile.

        The callable's state is as before afterwards, but the contents of `buffers` are lost, and so are outputs that
        were lent. A key that fails is dropped alone, and not tried again.

        Args:
            keys: some of `pending`; by default all.
            on_key: told of each key when it is captured, or is not.

        Raises:
            RuntimeStateError: before `defer_capture` or `capture`, from inside a step or a capture, or a key is not
                pending.
            AddressChangedError: what a graph reads has moved since its capture; nothing was changed. Not with
                ``on_moved="recapture"``: then its key waits as well.
        """
        self._life.require(Stage.CAPTURED, step="capture_late")
        if is_planning() or is_recording():
            raise RuntimeStateError("capture_late() was called inside a capture", fix="capture between two steps")
        pending = self.pending
        chosen = pending if keys is None else list(keys)
        if other := [key for key in chosen if key not in set(pending)]:
            raise RuntimeStateError(f"{other[0]} is not pending", fix="capture keys of `pending`")
        self.finish_shadow()
        with self._lock, no_grad():
            self.backend.generation.advance()  # what a capture runs writes bridges
            self.apply_guards()  # owners are counted anew by captures: what was dropped before must be seen before
            kept = self._service.kept()
            report, plans = self._late.capture(chosen, on_key=on_key)
            if self.config.max_num_reqs is None:
                self._delivery.check()
            self._service.swap(plans, [], kept=kept)
            self._service.give_up(report.failed)
        return report

    def release(self) -> None:
        """Give all graphs and their memory back; steps run eagerly until `recapture`. For sleep and weight reloads."""
        self._life.require_open()
        with self._lock:
            self._qualifier.drop()
            self._service.release()
            self._life.stage = Stage.PLANNED

    def recapture(self, *, on_key: Callable[[GraphKey], None] | None = None) -> CaptureReport:
        """Warm up and capture everything again, at the addresses that hold now: after weights were re-bound or moved.

        As at first, it is not undone what the runs write into state, nor that random generators move.

        Raises: what `warm_up` and `capture` do.
        """
        self.release()
        return self.warm_up(on_key=on_key).capture(on_key=on_key)

    def suggest_sizes(
        self,
        *,
        min_steps: int = 1000,
        min_saved_percent: float = 5.0,
        costs: Mapping[str, Callable[[int], float]] | None = None,
    ) -> SizeSuggestion:
        """Sizes that suit the steps counted since the last reset better than those there are, or why there are none.

        Args:
            min_steps: of a kind, fewer of which say nothing.
            min_saved_percent: of what the steps compute, or of the steps that find no bucket.
            costs: "decode" and "mixed" -> time of a step by bucket size; tokens where there is none.

        Raises:
            ConfigError: a threshold that is none.
        """
        return self._resizing.suggest(
            self.counters, min_steps=min_steps, min_saved_percent=min_saved_percent, costs=costs
        )

    def resize(
        self,
        *,
        sizes: tuple[int, ...] | None = None,
        decode_sizes: tuple[int, ...] | None = None,
        on_key: Callable[[GraphKey], None] | None = None,
    ) -> ResizeReport:
        """Capture these sizes and give others back, between two steps; steps on other threads wait meanwhile.

        The new keys are captured before the old ones go. If one fails it is dropped alone and nothing is retired.
        The contents of `buffers` are lost, and so are outputs that were lent.

        Args:
            sizes: all token buckets; None leaves them.
            decode_sizes: all request buckets of uniform decode; None leaves them.
            on_key: told of each new key when it is captured, or is not.

        Raises:
            RuntimeStateError: before `capture`, or from inside a step or a capture.
            ConfigError: a size above the static buffers, or none as large as the largest there is.
            AddressChangedError: what a graph reads has moved since capture; nothing was changed. Not with
                ``on_moved="recapture"``: then its key waits for the next step that wants it.
        """
        self._life.require(Stage.CAPTURED, step="resize")
        if is_planning() or is_recording():
            raise RuntimeStateError("resize() was called inside a capture", fix="change sizes between two steps")
        target = self._resizing.target(sizes=sizes, decode_sizes=decode_sizes)
        self.finish_shadow()
        with self._lock, no_grad():
            self.backend.generation.advance()  # what a capture runs writes bridges
            self.apply_guards()  # owners are counted anew by captures: what was dropped before must be seen before
            return self._resizing.apply(target, on_key=on_key)

    def check_guards(self) -> None:
        """Look at every tensor that any graph reads, now, whatever the level of guards.

        Raises:
            AddressChangedError: one has moved, was replaced or dropped since capture; the message names it.
        """
        self._life.require_open()
        self.buffers.check_addresses()
        self._captured.check_all()

    def apply_guards(self) -> None:
        """Look at every tensor that any graph reads, now, and do what ``on_moved`` says of those that have moved.

        With "recapture" the graphs that read them are given back, and their keys are `pending`.

        Raises:
            AddressChangedError: a static buffer has moved, or with "raise" anything else that a graph reads.
        """
        self._life.require_open()
        if self._recapturing is None:
            self.check_guards()
        else:
            self.buffers.check_addresses()
            self._recapturing.withdraw_moved()

    def _withdraw_moved(self) -> None:
        """With "recapture": what a step would do about graphs that read what has moved, before they are tried."""
        if self._recapturing is not None:
            with self._lock:
                self._recapturing.withdraw_moved()

    def close(self) -> None:
        """Give back graphs, then the pool. Idempotent; later calls raise `ClosedError`."""
        if self._life.is_over:
            return
        with self._lock:
            self._life.end()
            self._qualifier.drop()
            self._captured.clear()
            self._wrapped.forget_state()
            self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- steps ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step on live inputs, any number of rows; returns live-sized outputs.

        With ``outputs="view"`` what a graph has written comes as `ReplayView`, checked at each use. What the callable
        itself keeps (a weight, a state tensor) comes as it is, as from an eager call; an input is copied.

        Inside another capture the callable is inlined. Without a fitting graph it runs eagerly on the inputs
        as they are, and the counters say why.

        Raises:
            InputSpecError: an input differs from its declaration.
            AddressChangedError: a static buffer was moved, or what the graph reads has, unless `GraphConfig.on_moved`
                says "recapture".
            BreakOutputError: a break returned something else than at capture.
        """
        return self._steps.call(args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Decision:
        """What a call with these inputs would do, and why not otherwise. Runs nothing."""
        return self._steps.explain(args, kwargs)

    def decide(self, live: LiveBatch) -> Decision:
        """What a step of these sizes would do. Runs and counts nothing."""
        return self._steps.decide(live)

    def sizes(self, decision: Decision) -> Sizes:
        """The padded sizes that a step by ``decision`` executes, hence the layout of `buffers` for it."""
        return self._steps.sizes(decision)

    def key_sizes(self, key: GraphKey) -> Sizes:
        """The padded sizes of ``key``, hence the layout of `buffers` that its graph has baked in."""
        return self._wrapped.key_sizes(key)

    def staging(self, *, bind_copy: BindCopy | None = None) -> Staging:
        """Host memory for assembling steps that `run` executes: one copy brings a whole step over.

        Args:
            bind_copy: who copies, where that is not the driver; see `Staging`.
        """
        return Staging(self.buffers, bind_copy=bind_copy)

    def run(self, decision: Decision, *, on_other: Callable[[Decision], None] | None = None) -> Any:
        """Run a step whose inputs stand in `buffers` already, at `sizes`, tails written by the caller.

        With EAGER the callable gets views of the live sizes. Outputs that are not copied are plain tensors, unchecked:
        for engines, which read before the next step. With ``on_moved="recapture"`` a step whose graph reads what has
        moved runs eagerly at `sizes`; its key is `pending` then, for `capture_late`: a capture would overwrite
        `buffers`, so no step begins one here.

        Args:
            decision: of `decide`, for what stands in `buffers`.
            on_other: told of the decision that the step took instead, where it did.

        Raises:
            RuntimeStateError: the decision is older than what gave its graph back.
        """
        return self._steps.run(decision, on_other=on_other)

    def made_up_call(self, key: GraphKey) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with which ``key`` is warmed up and captured, prepared; for looking at the callable alone."""
        self._life.require_open()
        self._runs.make_ready(key)
        return self._wrapped.arguments(self.key_sizes(key))

    def memory(self) -> Ledger:
        """Bytes by owner, measured now. The graph pool is shared by all `Graphed` of one CUDA device."""
        ledger = Ledger()
        ledger.enter("static buffers", self.buffers.num_bytes)
        ledger.enter("bridges", self._bridges.num_bytes)
        ledger.enter("graph pool", self.backend.memory().reserved_bytes)
        return ledger

    def break_argument_bytes(self) -> ArgumentBytes:
        """What holding the arguments of breaks costs over all keys, by `GraphConfig.ownership`; by key: `inspect`.

        What segments have made lies in the graph pool, and bridges and inputs have lines of their own in `memory`.
        """
        return add_up(argument for plan in self.plans.values() for argument in plan.break_arguments)

    def inspect(self, key: GraphKey) -> PlanInspection:
        """What the graph of ``key`` consists of: segments and their nodes, breaks and their source, bridges.

        Raises:
            RuntimeStateError: there is no graph of this key; the message lists those that are.
        """
        return inspect_plan(self._captured.plan_of(key))

    # --- measured costs --------------------------------------------------------------------------

    @property
    def costs(self) -> CostTable | None:
        """The measured costs by which steps are dispatched; None: by the order of ways alone."""
        return self._dispatcher.costs

    def use_costs(self, costs: CostTable | None) -> None:
        """Dispatch by ``costs`` from now on: of `measure`, or of `read_costs`; None goes back to the order of ways.

        Ranks that share collectives must all use one table: each decides from it alone, and they must decide alike.

        Raises:
            ConfigError: it is no `CostTable`.
        """
        self._life.require_open()
        if costs is not None:
            check_costs(costs)
        self._dispatcher.use_costs(costs)

    def measure(
        self,
        *,
        steps: StepsToTime | None = None,
        sizes: Sequence[int] | None = None,
        budget_seconds: float = 1.0,
        overlap: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        on_step: Callable[[], None] | None = None,
    ) -> CostTable:
        """Time replays and eager runs on made-up batches, and dispatch by what they cost from now on.

        Then those between which a choice is near are timed side by side, for at most as long again: between two that
        are timed apart, a host that changes its speed makes larger differences than there are.

        A step costs what it takes behind one of its own kind, the host ahead of the device: what the host spends on
        launches, or what the device works, whichever is more. With ``overlap=False``, and on the CPU, it is the wall
        time of both together. State and random
        generators are as before afterwards; nothing is counted. Not while steps are running elsewhere: they would not
        be counted, and what they write to the state would be taken back.

        Args:
            steps: of the caller's own; by default the batches of warm-up, with random rows.
            sizes: only buckets of these numbers of tokens; by default all, and eager at some of them.
            budget_seconds: for the first times of all, by the clock on the wall and with all that is not a time of a
                step; nine turns of each step are spent in any case.
            overlap: whether steps will be launched one right behind the other; False if the outputs of each are read
                before the next one is launched.
            clock: seconds; with ``overlap`` on CUDA of what is spent alone, as a step is timed by the device.
            on_step: told of each turn: nine for each step, and then as many as near choices need (for a progress bar).

        Raises:
            RuntimeStateError: before `capture`, or every key is `pending`.
            ConfigError: the budget is not above 0, ``overlap`` is no bool, or a size is no bucket that is captured.
        """
        check_budget(budget_seconds)
        check_overlap(overlap)
        self._life.require_captured(self.keys, step="measure")
        self._withdraw_moved()
        if self.pending and not self.plans:
            raise RuntimeStateError(
                f"there is no graph to measure: all {len(self.pending)} keys wait for their capture",
                fix="call capture_late() first",
            )
        costs = self._measuring.measure(
            steps, sizes=sizes, budget_seconds=budget_seconds, overlap=overlap, clock=clock, on_step=on_step
        )
        self.use_costs(costs)
        return costs

    def unmeasured(self, costs: CostTable, *, steps: StepsToTime | None = None) -> list[GraphKey]:
        """Keys that are or will be captured and have no cost of their own in ``costs``, measured with other sizes.

        Decisions take what lies between its buckets for theirs, though kernels change with the bucket.

        Args:
            steps: see `measure`.

        Raises:
            RuntimeStateError: before `capture`.
            ConfigError: ``costs`` is no `CostTable`.
        """
        check_costs(costs)
        self._life.require_captured(self.keys, step="unmeasured")
        return self._measuring.unmeasured(costs, steps)

    # --- graph against eager -------------------------------------------------------------------

    def qualify(
        self,
        *,
        keys: Sequence[GraphKey] | None = None,
        cases: QualificationCases | None = None,
        seed: int = 0,
        on_key: Callable[[KeyReport], None] | None = None,
    ) -> QualificationReport:
        """Compare every captured key with eager on padded and poisoned batches; keys that differ are quarantined.

        State and random generators are as before afterwards. On CUDA not while steps are running elsewhere. With
        ``on_moved="recapture"`` graphs that read what has moved are not tried but given back, and their keys `pending`.

        Args:
            keys: only these.
            cases: batches of the caller's own; by default seeded random rows, integers within the slot's valid range
                or the example's.
            seed: of the default batches.
            on_key: told of each key when it is done.

        Raises:
            RuntimeStateError: before `capture`, or there is no graph of a key.
            QualificationError: the callable fails on a test batch.
        """
        if keys is None:
            self._life.require_captured(self.keys, step="qualify")
        else:
            self._life.require(Stage.CAPTURED, step="qualify")
        self._withdraw_moved()
        chosen = list(self.plans) if keys is None else [self._captured.plan_of(key).key for key in keys]
        return self._qualifier.qualify(chosen, cases, seed=seed, on_key=on_key)

    def bisect(self, key: GraphKey, *, cases: QualificationCases | None = None, seed: int = 0) -> list[Culprit]:
        """The segments, ops and breaks of ``key`` that do not do what eager does at its padded shape, first one first.

        If all do, and live rows depend on padded ones in eager runs too (PADDING_LEAKS of `qualify`), the one culprit
        has no segment and names the op where rows first mix. Empty if there is nothing to be found.

        Args:
            cases: see `qualify`.
            seed: see `qualify`.

        Raises: what `qualify` does.
        """
        self._life.require(Stage.CAPTURED, step="bisect")
        self._captured.plan_of(key)
        return self._qualifier.bisect(key, cases, seed=seed)

    def finish_shadow(self) -> None:
        """Compare the step that `GraphConfig.shadow_every` has kept, if any. Calls do it first of all; after `run` it
        is the caller's to do, between two steps, or to drop: what the step reads and does not write must be as it was.
        If the eager run fails, the step is dropped, the event `ShadowFailed` says so, and nothing is raised.
        """
        self._qualifier.finish_shadow()

    @property
    def shadow_key(self) -> GraphKey | None:
        """Of the step that waits for `finish_shadow`, if any does; others are not kept meanwhile."""
        shadow = self._qualifier.shadow
        return None if shadow is None else shadow.kept_key

    def drop_shadow(self) -> None:
        """Forget the step that waits for `finish_shadow`: it can no longer be compared."""
        if self._qualifier.shadow is not None:
            self._qualifier.shadow.drop_kept()

    @property
    def shadow_counts(self) -> ShadowCounts:
        """What became of the steps that a shadow was to look at, so far."""
        return self._qualifier.shadow_counts
