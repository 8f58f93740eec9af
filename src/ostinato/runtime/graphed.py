"""`Graphed`: the facade. Any PyTorch callable in, a replayable one out.

Owns the life cycle plan -> warm_up -> capture -> replay -> close and nothing of how each step works. Plain
users call it like the callable; an engine writes into `buffers` itself and uses `decide` and `run`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from ostinato.errors import CaptureError, ClosedError, ConfigError, InputSpecError, OstinatoError, RuntimeStateError
from ostinato.runtime.breaks import is_planning, is_recording
from ostinato.runtime.buffers import (
    NUM_REQS,
    NUM_TOKENS,
    BridgePool,
    CallLayout,
    Place,
    Sizes,
    Slot,
    Staging,
    StaticBuffers,
    live_sizes,
    places_in,
    places_of,
)
from ostinato.runtime.capture import CaptureBackend, as_device, select_backend
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import (
    CostTable,
    Decision,
    Dispatcher,
    MadeUpSteps,
    ModeRequest,
    Reason,
    ResolvedMode,
    StepsToTime,
    measure_steps,
    resolve_mode,
    steps_to_time,
)
from ostinato.runtime.keys import CaptureSupport, Compiler, GraphKey, LiveBatch, Mode, Partition
from ostinato.runtime.memory import Ledger
from ostinato.runtime.nest import tensors
from ostinato.runtime.planning import PlannedSizes, SizeSuggestion, largest_size, plan_keys, suggest_sizes
from ostinato.runtime.qualify import (
    Culprit,
    KeyReport,
    QualificationCases,
    QualificationReport,
    Qualifier,
    ShadowOwner,
    Subject,
    WholeState,
    integer_ranges,
    written_state,
)
from ostinato.runtime.resize import ResizeReport, Resizing, changed_sizes
from ostinato.runtime.runners import (
    ArgumentBytes,
    BoundCall,
    CapturedKeys,
    CapturedPlan,
    CaptureReport,
    Delivery,
    PlanInspection,
    StepLock,
    add_up,
    capture_all,
    generators_kept,
    inspect_plan,
    make_runners,
    run_eager,
    seeded,
    state_kept,
    timed,
)
from ostinato.telemetry import (
    CeilingWatch,
    DispatchCounters,
    EventBus,
    GraphClosed,
    KeyDropped,
    LogSink,
    ModeResolved,
    Sink,
)

__all__ = ["Graphed"]


class _Stage(StrEnum):
    PLANNED = "planned"
    WARM = "warmed up"
    CAPTURED = "captured"
    CLOSED = "closed"


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
            reads through torch's ops is found at capture; both are guarded at replay.
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
        if example is not None and not isinstance(example, tuple):
            raise ConfigError(f"example is a {type(example).__name__}", fix="pass a tuple of arguments: example=(x,)")
        if not callable(fn):
            raise ConfigError(
                f"a value of type {type(fn).__name__} cannot be called", fix="pass a function or a module"
            )
        if not isinstance(capture_support, CaptureSupport):
            raise ConfigError(f"capture_support is {capture_support!r}", fix="pass a CaptureSupport")
        if slots is not None and not (
            isinstance(slots, Mapping) and slots and all(isinstance(slot, Slot) for slot in slots.values())
        ):
            raise ConfigError("slots map names to Slot(...)", fix='pass slots={"x": Slot(shape=(None, 8), dtype=...)}')
        if config is not None and not isinstance(config, GraphConfig):
            raise ConfigError(f"config is a {type(config).__name__}", fix="pass GraphConfig(...)")
        has_example = example is not None or example_kwargs is not None
        if has_example == (slots is not None):
            raise ConfigError("give either example=(...) or slots={...}", fix="pass one example call, or one Slot each")
        self.config = config or GraphConfig()
        self._fn = fn
        self._state = state
        if slots is not None:
            self._layout = CallLayout.from_slots(slots)
        else:
            self._layout = CallLayout.from_example(fn, example or (), example_kwargs or {})
        found = list(tensors((example, example_kwargs)))
        self.device = as_device(device) if device is not None else found[0].device if found else torch.device("cpu")
        self._integer_ranges = integer_ranges(self._layout.slots, found)
        self._prepare = prepare
        self._after_warm_up = after_warm_up
        max_size = largest_size(self.config, next((t.shape[0] for t in found if t.dim() > 0), None))
        counting = [name for name, slot in self._layout.slots.items() if slot.axis == NUM_REQS]
        if counting and self.config.max_num_reqs is None:
            raise ConfigError(f"slots {counting} count requests", fix="set GraphConfig(max_num_reqs=...)")
        self.counters = DispatchCounters()
        self._bus = EventBus(self.counters, LogSink(), *sinks)
        self.counters.ceiling = CeilingWatch(self._bus.emit)
        self.mode: ResolvedMode = resolve_mode(
            ModeRequest.of(self.config, support=capture_support, device_type=self.device.type)
        )
        self._bus.emit(ModeResolved(asked=self.mode.asked, resolved=self.mode.mode, reason=self.mode.reason))
        self.backend: CaptureBackend = select_backend(self.device)
        self.device = self.backend.device
        self._max_sizes = {NUM_TOKENS: max_size, NUM_REQS: self.config.max_num_reqs or max_size}
        self.buffers = StaticBuffers(self._layout.slots, max_sizes=self._max_sizes, device=self.device)
        keys = self._plan(self.config)
        if not keys and self.mode.mode is not Mode.NONE:
            raise ConfigError("no size is left to capture", fix="choose sizes that are multiples of size_multiple")
        self._dispatcher = Dispatcher(
            keys,
            bus=self._bus,
            max_padding=self.config.padding_limit,
            failures_to_quarantine=self.config.failures_to_quarantine,
        )
        self._bridges = BridgePool()
        self._runners = make_runners(
            self.backend,
            partition=self.mode.partition,
            compiler=self.mode.compiler,
            compile_max_tokens=self.config.compile_max_tokens,
            allow_unbroken_attention=self.config.unbroken_attention == "allow",
            owns_arguments=self.config.ownership == "owned",
            bridges=self._bridges,
            before_trace=after_warm_up,
        )
        self._captured = CapturedKeys(guard_level=self.config.guards)
        self._delivery = Delivery(copies=self.config.outputs == "copy", arena=self.buffers.arena)
        self._shadow_owner = shadow
        self._stage = _Stage.PLANNED
        self._lock = StepLock()
        self._qualifier = Qualifier(self._subject, lock=self._lock, quarantine=self._dispatcher.quarantine)

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
        self._require(_Stage.PLANNED, _Stage.WARM, step="warm_up")
        with self._lock, torch.no_grad():
            for run in range(self._num_warm_up_runs):
                for key in self.keys:
                    self._warm_up_one(key)
                    if on_key is not None and run == self._num_warm_up_runs - 1:
                        on_key(key)
                self._warm_up_witness()
        if self.config.max_num_reqs is None:  # with requests, an output may have one row a request
            self._delivery.check()
        if self._after_warm_up is not None:
            self._after_warm_up()
        self._stage = _Stage.WARM
        return self

    def capture(self, *, on_key: Callable[[GraphKey], None] | None = None) -> CaptureReport:
        """Capture every planned key, largest first, into one pool. A key that fails is dropped alone.

        Raises:
            RuntimeStateError: before `warm_up`, or a second time.
            CaptureError: no key at all could be captured; the first key's error is its cause, or is raised
                itself if it is an `OstinatoError` already.
        """
        self._require(_Stage.WARM, step="capture")
        kept = self._kept()
        self.backend.generation.advance()  # what a capture runs writes bridges

        def done(key: GraphKey, plan: CapturedPlan | None) -> None:
            if plan is None:
                self._dispatcher.block(key, Reason.CAPTURE_FAILED)
            else:
                self._captured.add(key, plan)
                self._dispatcher.mark_captured(key)
            if on_key is not None:
                on_key(key)

        with self._lock, torch.no_grad():
            report = capture_all(self.keys, self._capture_one, backend=self.backend, bus=self._bus, on_done=done)
            self._watch_plans(kept)
            self._qualifier.start_shadow(self.config.shadow_every, self._shadow_owner)
        self._stage = _Stage.CAPTURED
        if report.failed and not report.captured:
            first = report.first_error
            if isinstance(first, OstinatoError):
                raise first
            raise CaptureError("no key could be captured", fix="see the cause; it is the first key's error") from first
        return report

    def release(self) -> None:
        """Give all graphs and their memory back; steps run eagerly until `recapture`. For sleep and weight reloads."""
        self._require_open()
        with self._lock:
            self._drop_plans()
            for key in self.keys:
                self._dispatcher.block(key, Reason.NOT_CAPTURED_YET)
                self._bus.emit(GraphClosed(key=str(key), reason="released"))
            self._stage = _Stage.PLANNED

    def recapture(self, *, on_key: Callable[[GraphKey], None] | None = None) -> CaptureReport:
        """Warm up and capture everything again, at the addresses that hold now: after weights were re-bound or moved.

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
        max_tokens, longest = self._max_sizes[NUM_TOKENS], max(self.config.uniform_query_lens)
        return suggest_sizes(
            PlannedSizes.of(self.keys),
            {"decode": self.counters.decode_sizes, "mixed": self.counters.mixed_sizes},
            limits={
                "decode": min(self._max_sizes[NUM_REQS], max_tokens // longest),
                "mixed": min(max_tokens, self.config.max_captured_size or max_tokens),
            },
            min_steps=min_steps,
            min_saved_percent=min_saved_percent,
            multiple=self.config.size_multiple,
            costs=costs,
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
            AddressChangedError: what a graph reads has moved since capture; nothing was changed.
        """
        self._require(_Stage.CAPTURED, step="resize")
        if is_planning() or is_recording():
            raise RuntimeStateError("resize() was called inside a capture", fix="change sizes between two steps")
        target = self._plan(
            changed_sizes(self.config, self.keys, sizes=sizes, decode_sizes=decode_sizes, max_sizes=self._max_sizes)
        )
        self.finish_shadow()
        with self._lock, _no_grad():
            self.backend.generation.advance()  # what a capture runs writes bridges
            self.check_guards()  # owners are counted anew: what was dropped before must be seen before
            return self._resizing().apply(target, on_key=on_key)

    def check_guards(self) -> None:
        """Look at every tensor that any graph reads, now, whatever the level of guards.

        Raises:
            AddressChangedError: one has moved, was replaced or dropped since capture; the message names it.
        """
        self._require_open()
        self.buffers.check_addresses()
        self._captured.check_all()

    def close(self) -> None:
        """Give back graphs, then the pool. Idempotent; later calls raise `ClosedError`."""
        if self._stage is _Stage.CLOSED:
            return
        with self._lock:
            self._stage = _Stage.CLOSED
            self._drop_plans()
            self._state = None
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
            AddressChangedError: a static buffer was moved.
            BreakOutputError: a break returned something else than at capture.
        """
        if is_planning() or is_recording():
            return self._fn(*args, **kwargs)
        self.finish_shadow()
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], decision: Decision | None = None) -> Any:
        """A step on the caller's tensors, by ``decision`` if that is made already."""
        found = self._layout.split(args, kwargs, self.device)
        live = self._live_batch(found)
        is_made = decision is not None
        decision = decision or self.decide(live)
        if decision.key is not None:
            with self._lock, torch.no_grad():
                if not is_made:
                    decision = self.decide(live)  # keys may have gone while the lock was waited for
                if decision.key is not None:
                    padded = self.sizes(decision)
                    self.buffers.write(found, padded)
                    self.buffers.pad(live_sizes(live), padded)
                    return self._delivery.deliver(self._replay(decision.key, decision), live.num_tokens)
        with torch.no_grad():
            return self._run_eagerly(decision, lambda: self._fn(*args, **kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> Decision:
        """What a call with these inputs would do, and why not otherwise. Runs nothing."""
        return self.decide(self._live_batch(self._layout.split(args, kwargs, self.device)))

    def decide(self, live: LiveBatch) -> Decision:
        """What a step of these sizes would do. Runs and counts nothing."""
        self._require_open()
        return self._dispatcher.decide(live)

    def sizes(self, decision: Decision) -> Sizes:
        """The padded sizes that a step by ``decision`` executes, hence the layout of `buffers` for it."""
        return live_sizes(decision.live) if decision.key is None else self.key_sizes(decision.key)

    def staging(self) -> Staging:
        """Host memory for assembling steps that `run` executes: one copy brings a whole step over."""
        return Staging(self.buffers)

    def run(self, decision: Decision) -> Any:
        """Run a step whose inputs stand in `buffers` already, at `sizes`, tails written by the caller.

        With EAGER the callable gets views of the live sizes. Outputs that are not copied are plain tensors, unchecked:
        for engines, which read before the next step.

        Raises:
            RuntimeStateError: the decision is older than a `resize` or `release` that gave its graph back.
        """
        with self._lock, _no_grad():
            if decision.key is not None:
                return self._delivery.lend(self._replay(decision.key, decision), decision.live.num_tokens)
            args, kwargs = self._layout.join(self.buffers.views(self.sizes(decision)))
            return self._run_eagerly(decision, lambda: self._fn(*args, **kwargs))

    def made_up_call(self, key: GraphKey) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with which ``key`` is warmed up and captured, prepared; for looking at the callable alone."""
        self._require_open()
        self._make_ready(key)
        return self._layout.join(self.buffers.views(self.key_sizes(key)))

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
        """
        self._require_open()
        self._dispatcher.use_costs(costs)

    def measure(
        self,
        *,
        steps: StepsToTime | None = None,
        sizes: Sequence[int] | None = None,
        budget_seconds: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
        on_step: Callable[[], None] | None = None,
    ) -> CostTable:
        """Time replays and eager runs on made-up batches, and dispatch by what they cost from now on.

        Wall time with the device's work in it, so what the host spends on launches counts. State and random
        generators are as before afterwards; nothing is counted. On CUDA not while steps are running elsewhere.

        Args:
            steps: of the caller's own; by default the batches of warm-up, with random rows.
            sizes: only buckets of these numbers of tokens; by default the smallest, the largest and some between.
            budget_seconds: for all of it; what each step takes five times is spent in any case.
            clock: seconds.
            on_step: told of each of the five turns of each step (for a progress bar).

        Raises:
            RuntimeStateError: before `capture`.
            ConfigError: the budget is not above 0.
        """
        if not 0 < budget_seconds < float("inf"):
            raise ConfigError(f"budget_seconds is {budget_seconds!r}", fix="use a number of seconds above 0")
        self._require_captured(step="measure")
        keys = [key for key in self.plans if self._dispatcher.usable(key)]
        self.finish_shadow()
        steps = steps or self._made_up_steps()
        query_lens = () if self.config.max_num_reqs is None else self.config.uniform_query_lens

        def seconds(run: Callable[[], Any]) -> float:
            return timed(run, self.device, clock=clock)[1]

        kept = state_kept({**steps.state(), "(static buffers)": self.buffers.arena})
        with kept, self._qualifier.without_shadow(), self._dispatcher.muted(), seeded(self.device), _no_grad():
            todo = steps_to_time(keys, steps, query_lens=query_lens, tiers=self.config.kv_tiers, sizes=sizes)
            costs = measure_steps(todo, steps, timed=seconds, budget_seconds=budget_seconds, on_step=on_step)
        self.use_costs(costs)
        return costs

    def _made_up_steps(self) -> MadeUpSteps:
        def inputs(key: GraphKey, sizes: Sizes) -> Mapping[str, torch.Tensor]:
            self._make_ready(key, sizes)
            return self.buffers.views(sizes)

        def call(values: Mapping[str, torch.Tensor], decision: Decision) -> Callable[[], Any]:
            args, kwargs = self._layout.join(values)
            return lambda: self._call(args, kwargs, decision)

        return MadeUpSteps(
            inputs=inputs,
            sizes_of=self.key_sizes,
            sizes=self.sizes,
            run=self.run,
            call=call,
            state=self._subject().state,
            max_num_reqs=self.config.max_num_reqs,
            is_prepared=self._prepare is not None,
        )

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

        State and random generators are as before afterwards. On CUDA not while steps are running elsewhere.

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
            self._require_captured(step="qualify")
        else:
            self._require(_Stage.CAPTURED, step="qualify")
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
        self._require(_Stage.CAPTURED, step="bisect")
        self._captured.plan_of(key)
        return self._qualifier.bisect(key, cases, seed=seed)

    def finish_shadow(self) -> None:
        """Compare the step that `GraphConfig.shadow_every` has kept, if any. Steps do it first of all; an engine
        calls it before it writes into `buffers`."""
        self._qualifier.finish_shadow()

    def _subject(self) -> Subject:
        # Whether a replay has the bits of an eager run: recorded calls do, compiled code and GPU kernels need not.
        is_compiled = self.mode.compiler is not Compiler.NONE or self.mode.partition is Partition.INDUCTOR
        return Subject(
            backend=self.backend,
            buffers=self.buffers,
            plans=self.plans,
            sizes_of=self.key_sizes,
            bind=self._bind,
            call=self._call_on,
            cut=self._delivery.cut,
            prepare=self._prepare,
            state=written_state((*places_in(self._state), *places_of(self._fn)), arena=self.buffers.arena),
            ranges=self._integer_ranges,
            capture=lambda key: self._runners[key.runtime_mode].capture(key, self._bind(key)),
            check_guards=self._captured.check_all,
            is_bitwise=self.backend.name == "simulated" and not is_compiled,
        )

    def _call_on(self, values: Mapping[str, torch.Tensor]) -> Any:
        args, kwargs = self._layout.join(values)
        return self._fn(*args, **kwargs)

    # --- inside --------------------------------------------------------------------------------

    def _plan(self, config: GraphConfig) -> list[GraphKey]:
        return plan_keys(
            config,
            self.mode.mode,
            max_size=self._max_sizes[NUM_TOKENS],
            full_mixed_max_tokens=self.mode.full_mixed_max_tokens,
            on_drop=self._report_drop,
        )

    def _resizing(self) -> Resizing:
        subject = self._subject()
        owner = self._shadow_owner or WholeState(subject.state, subject.cut)

        @contextmanager
        def kept(key: GraphKey) -> Iterator[None]:
            self._make_ready(key)  # the owner looks at the made-up step
            sizes = self.key_sizes(key)
            live = LiveBatch(num_tokens=key.num_tokens, num_reqs=sizes[NUM_REQS])
            with state_kept(owner.written(key, live)), generators_kept(self.device):
                yield

        return Resizing(
            backend=self.backend,
            bus=self._bus,
            dispatcher=self._dispatcher,
            captured=self._captured,
            num_warm_up_runs=self._num_warm_up_runs,
            warm_up_one=self._warm_up_one,
            after_warm_up=self._after_warm_up,
            capture_one=self._capture_one,
            state_kept=kept,
            watch=partial(self._watch_plans, self._kept()),
        )

    @property
    def _num_warm_up_runs(self) -> int:
        is_compiled = self.mode.partition is not Partition.BREAKABLE or self.mode.compiler is not Compiler.NONE
        return max(self.config.warm_up_runs, 2 if is_compiled else 1)  # what compiles learns in the first run

    def _kept(self) -> list[Place]:
        """What the callable keeps. Held from before a capture to its end: so no graph is given that memory."""
        return [*places_of(self._fn), *places_in(self._state)]

    def _watch_plans(self, kept: Sequence[Place]) -> None:
        """Guard what the plans read, as it lies now; ``kept`` is from before their capture."""
        known = {self.buffers.arena.untyped_storage().data_ptr(), *self._bridges.addresses}
        self._captured.watch(places_of(self._fn), places_in(self._state), known=known)
        self._delivery.leave(place.tensor for place in kept)

    def _run_eagerly(self, decision: Decision, call: Callable[[], Any]) -> Any:
        self._require_open()
        began = time.perf_counter()
        try:
            return run_eager(call)
        finally:
            self._dispatcher.record(decision, time.perf_counter() - began)

    def _replay(self, key: GraphKey, decision: Decision) -> CapturedPlan:
        """The plan that was replayed: its outputs are those of the step."""
        self._require_open()
        plan = self._captured.plan_of(key)
        live = decision.live
        shadow = self._qualifier.shadow
        try:
            self.buffers.check_addresses()
            self._captured.check(key)
            began = time.perf_counter()
            if shadow is None:
                plan.replay(live.num_tokens)
            else:
                shadow.replayed(key, live, self.key_sizes(key), lambda: plan.replay(live.num_tokens))
        except Exception as error:
            self._dispatcher.record_failure(key, error)
            raise
        self._dispatcher.record(decision, time.perf_counter() - began)
        return plan

    def _capture_one(self, key: GraphKey) -> CapturedPlan:
        self._make_ready(key)
        return self._runners[key.runtime_mode].capture(key, self._bind(key))

    def _drop_plans(self) -> None:
        self._captured.clear()
        self._qualifier.drop()

    def _report_drop(self, key: GraphKey, why: str) -> None:
        self._bus.emit(KeyDropped(key=str(key), reason=why))

    def _make_ready(self, key: GraphKey, sizes: Sizes | None = None) -> None:
        """Safe values in all rows, and fresh metadata, before a run that no user's batch stands behind."""
        self.buffers.arena.zero_()  # fixed-shape slots have no tail to pad, and other layouts were written here
        self.buffers.pad({NUM_TOKENS: 0, NUM_REQS: 0}, sizes or self.key_sizes(key))
        if self._prepare is not None:
            self._prepare(key)

    def _bind(self, key: GraphKey) -> BoundCall:
        args, kwargs = self._layout.join(self.buffers.views(self.key_sizes(key)))
        return BoundCall(self._fn, args, kwargs)

    def key_sizes(self, key: GraphKey) -> Sizes:
        """The padded sizes of ``key``, hence the layout of `buffers` that its graph has baked in."""
        # A piecewise key takes any number of requests: its segments see slots for the most that it can hold.
        num_reqs = min(key.num_tokens, self._max_sizes[NUM_REQS]) if key.num_reqs is None else key.num_reqs
        return {NUM_TOKENS: key.num_tokens, NUM_REQS: num_reqs}

    def _warm_up_one(self, key: GraphKey) -> None:
        self._make_ready(key)
        version = self.buffers.arena._version
        outputs = self._runners[key.runtime_mode].warm_up(key, self._bind(key))
        if self.buffers.arena._version != version:
            raise InputSpecError(
                "the callable writes into its arguments; a replay would write into its own buffers instead",
                fix="clone the argument inside the callable, and return the result",
            )
        self._delivery.observe(outputs, key.num_tokens)

    def _warm_up_witness(self) -> None:
        """With one bucket, run one size more: else a state tensor of as many rows would pass for a batch."""
        sizes = {key.num_tokens for key in self.keys}
        if len(sizes) == 1 and max(sizes) > 1 and self._prepare is None:
            self._warm_up_one(dataclasses.replace(self.keys[0], num_tokens=max(sizes) - 1))

    def _live_batch(self, found: Mapping[str, torch.Tensor]) -> LiveBatch:
        num_reqs = self._layout.num_rows(found, NUM_REQS)
        num_tokens = self._layout.num_rows(found, NUM_TOKENS)
        return LiveBatch(num_tokens=num_tokens or num_reqs or 0, num_reqs=num_reqs)

    def _require_captured(self, *, step: str) -> None:
        """All keys are captured, or there are none (mode "none") and nothing is left to do."""
        self._require(_Stage.CAPTURED, *([] if self.keys else [_Stage.WARM]), step=step)

    def _require(self, *stages: _Stage, step: str) -> None:
        self._require_open()
        if self._stage not in stages:
            raise RuntimeStateError(
                f"{step}() was called when the callable was {self._stage}",
                fix="the order is: warm_up(), capture(), then calls, then close(); after release() call recapture()",
            )

    def _require_open(self) -> None:
        if self._stage is _Stage.CLOSED:
            raise ClosedError("this Graphed was closed", fix="make a new one, or keep the with block open")


def _no_grad() -> AbstractContextManager[None]:
    """Gradients off; free where they are off already, since torch's own context costs as much as a launch."""
    return torch.no_grad() if torch.is_grad_enabled() else nullcontext()
