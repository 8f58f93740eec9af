"""`assemble`: the parts of one `Graphed`, each made once and given the others that it works with.

The one place that knows how they hang together; what each does stands in its own file. Runs nothing of the callable.
Called by the facade's constructor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import ConfigError
from ostinato.runtime.arguments import Arguments
from ostinato.runtime.buffers import NUM_TOKENS, BridgePool
from ostinato.runtime.capture import CaptureBackend, generators_in, select_backend
from ostinato.runtime.dispatch import Dispatcher, ModeRequest, ResolvedMode, resolve_mode
from ostinato.runtime.keys import Mode
from ostinato.runtime.late_capture import LateCapture
from ostinato.runtime.qualify import Qualifier, Subject, integer_ranges
from ostinato.runtime.recapture import Recapturing
from ostinato.runtime.resize import Resizing
from ostinato.runtime.runners import CapturedKeys, Delivery, MadeUpRuns, StepLock, WrappedCallable, make_runners
from ostinato.runtime.service import KeyService, plan_reported
from ostinato.runtime.stages import Life
from ostinato.runtime.steps import LiveSteps, Measuring
from ostinato.telemetry import CeilingWatch, DispatchCounters, EventBus, LogSink, ModeResolved, ShadowFailed

__all__ = ["Parts", "assemble"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What one `Graphed` consists of. For its facade alone: parts are given parts, never all of them."""

    counters: DispatchCounters
    bus: EventBus
    mode: ResolvedMode
    backend: CaptureBackend
    wrapped: WrappedCallable
    bridges: BridgePool
    life: Life
    lock: StepLock
    dispatcher: Dispatcher
    captured: CapturedKeys
    delivery: Delivery
    runs: MadeUpRuns
    service: KeyService
    qualifier: Qualifier
    steps: LiveSteps
    late: LateCapture
    recapturing: Recapturing | None
    resizing: Resizing
    measuring: Measuring


def assemble(arguments: Arguments) -> Parts:
    """All parts; nothing is warmed up.

    Raises:
        ConfigError: sizes that contradict each other, or a device that is none.
        DeviceUnavailableError: the device is not on this machine.
        UnsupportedPartitionError: the partition needs a compiler that this machine does not have.
    """
    config, layout = arguments.config, arguments.layout
    device = arguments.find_device()
    ranges = integer_ranges(layout.slots, arguments.tensors)
    max_sizes = arguments.find_max_sizes()

    counters = DispatchCounters()
    bus = EventBus(counters, LogSink(), *arguments.sinks)
    counters.ceiling = CeilingWatch(bus.emit)
    mode = resolve_mode(ModeRequest.of(config, support=arguments.capture_support, device_type=device.type))
    bus.emit(ModeResolved(asked=mode.asked, resolved=mode.mode, reason=mode.mode_reason))
    for change in mode.changes:
        if change.setting != "mode":
            asked, resolved = str(change.asked), str(change.resolved)
            bus.emit(ModeResolved(setting=change.setting, asked=asked, resolved=resolved, reason=change.why))

    backend = select_backend(device, shares_executables=config.executables == "shared")
    for generator in generators_in(arguments.state):
        backend.generators.note(generator)
    wrapped = WrappedCallable(
        arguments.fn, layout=layout, max_sizes=max_sizes, device=backend.device, state=arguments.state
    )
    keys = plan_reported(config, mode, max_tokens=max_sizes[NUM_TOKENS], bus=bus)
    if not keys and mode.mode is not Mode.NONE:
        raise ConfigError("no size is left to capture", fix="choose sizes that are multiples of size_multiple")

    max_captured_tokens = min(max_sizes[NUM_TOKENS], config.max_captured_size or max_sizes[NUM_TOKENS])
    life, lock, bridges = Life(), StepLock(), BridgePool()
    dispatcher = Dispatcher(
        keys,
        bus=bus,
        max_padding=config.padding_limit,
        failures_to_quarantine=config.failures_to_quarantine,
        max_captured_tokens=max_captured_tokens,
    )
    captured = CapturedKeys(guard_level=config.guards)
    delivery = Delivery(copies=config.outputs == "copy", arena=wrapped.buffers.arena)
    runners = make_runners(
        backend,
        partition=mode.partition,
        compiler=mode.compiler,
        compile_max_tokens=config.compile_max_tokens,
        allow_unbroken_attention=config.unbroken_attention == "allow",
        owns_arguments=config.ownership == "owned",
        bridges=bridges,
        before_trace=arguments.after_warm_up,
        runtime_modes=mode.runtime_modes,
    )
    runs = MadeUpRuns(
        wrapped,
        runners,
        delivery=delivery,
        num_warm_ups=max(config.warm_up_runs, 2 if mode.is_traced else 1),
        prepare=arguments.prepare,
        after_warm_up=arguments.after_warm_up,
    )
    service = KeyService(
        wrapped,
        backend=backend,
        bus=bus,
        dispatcher=dispatcher,
        captured=captured,
        delivery=delivery,
        bridges=bridges,
    )
    subject = Subject(
        backend=backend,
        runs=runs,
        captured=captured,
        cut=delivery.cut,
        ranges=ranges,
        # Recorded calls have the bits of an eager run; compiled code and GPU kernels need not.
        is_bitwise=backend.name == "simulated" and not mode.is_compiled,
    )
    qualifier = Qualifier(
        subject,
        lock=lock,
        quarantine=dispatcher.quarantine,
        on_shadow_failed=lambda key, error: bus.emit(
            ShadowFailed(key=str(key), error=f"{type(error).__name__}: {error}")
        ),
        owner=arguments.shadow,
    )
    late = LateCapture(service=service, runs=runs, qualifier=qualifier)
    recapturing = None
    if config.on_moved == "recapture":
        recapturing = Recapturing(
            backend=backend, bus=bus, dispatcher=dispatcher, service=service, late=late, qualifier=qualifier
        )
    steps = LiveSteps(
        wrapped,
        life=life,
        lock=lock,
        dispatcher=dispatcher,
        captured=captured,
        delivery=delivery,
        qualifier=qualifier,
        recaptures=recapturing,
    )
    resizing = Resizing(
        config=config,
        mode=mode,
        bus=bus,
        service=service,
        late=late,
        max_sizes=max_sizes,
        max_captured_tokens=max_captured_tokens,
    )
    measuring = Measuring(
        config=config, live=steps, runs=runs, dispatcher=dispatcher, captured=captured, qualifier=qualifier
    )
    return Parts(
        counters=counters,
        bus=bus,
        mode=mode,
        backend=backend,
        wrapped=wrapped,
        bridges=bridges,
        life=life,
        lock=lock,
        dispatcher=dispatcher,
        captured=captured,
        delivery=delivery,
        runs=runs,
        service=service,
        qualifier=qualifier,
        steps=steps,
        late=late,
        recapturing=recapturing,
        resizing=resizing,
        measuring=measuring,
    )
