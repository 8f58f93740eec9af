"""`EngineLoop`: one step of the engine: schedule, launch, read, deliver.

Owns no model and no thread: it ties the scheduler, the executor and what requests are told (`RequestUpdates`)
together. With ``overlap`` a step is launched before the tokens of the step before are read, so that the host's work
runs while the device computes; a request that a token ends (a stop token, a stop string) has then run one step too
many, whose token nobody sees.

What goes wrong ends as little as it can, with a typed error in the last update of each request that it ends: a
request alone (its logits, its text), the requests of a step that fails, or all, when the device or the books cannot
be trusted any more. `step` raises none of it. An interrupt (KeyboardInterrupt) does leave `step`; the same step is
then scheduled again, unless it came just while tokens were entered and handed out: that ends the engine.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.engine.request import FinishReason, Request
from ostinato.engine.sampling import CopyRing, PendingSample
from ostinato.engine.scheduler import Deadlines, ScheduledBatch, Scheduler
from ostinato.engine.step_errors import engine_dead, leaves_device_usable, step_failed
from ostinato.engine.text import Tokenizer
from ostinato.engine.updates import RequestUpdate, RequestUpdates
from ostinato.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    PageIntegrityError,
    RuntimeStateError,
)
from ostinato.telemetry import EngineDied, EventBus, RequestPreempted, StepFailed, StepFinished

__all__ = ["EngineLoop", "HostTime", "LaunchedStep", "StepExecutor"]

_NO_TOKENS: Final[NDArray[np.int64]] = np.zeros(0, dtype=np.int64)


class LaunchedStep(Protocol):
    """What the loop needs of `execution.StepOutput`."""

    @property
    def logits(self) -> torch.Tensor:
        """[num_sampling, vocab], of the items that sample, in order."""
        ...

    @property
    def token_ids(self) -> torch.Tensor:
        """[num_sampling] int64, the chosen tokens, -1 where there is none; read by the next step."""
        ...

    @property
    def errors(self) -> Mapping[str, EngineError]:
        """Request id -> why it has no token, where that is known already."""
        ...

    @property
    def labels(self) -> tuple[str, str, str] | None:
        """(runtime mode, bucket, reason), under which the step's time is counted; None: nowhere."""
        ...


class StepExecutor(Protocol):
    """What the loop needs of `execution.Executor`."""

    def execute(self, batch: ScheduledBatch) -> LaunchedStep:
        """Launch a step."""
        ...


@dataclass
class HostTime:
    """Where the host's time went, over all steps: ``busy`` with its own work, ``waiting`` for the device."""

    num_steps: int = 0
    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """``{"steps", "busy_seconds", "waiting_seconds", "busy_us_per_step"}``."""
        return {
            "steps": self.num_steps,
            "busy_seconds": self.busy_seconds,
            "waiting_seconds": self.waiting_seconds,
            "busy_us_per_step": round(self.busy_seconds / max(self.num_steps, 1) * 1e6, 1),
        }


@dataclass(frozen=True)
class _InFlight:
    """A step whose tokens have not been read."""

    batch: ScheduledBatch
    sample: PendingSample | None
    """None if nobody samples."""
    labels: tuple[str, str, str] | None
    launched_at: float
    """On `time.perf_counter`, before the executor was called."""


class EngineLoop:
    """Runs requests to their end, a step at a time. Used by one thread.

    Args:
        executor: runs batches.
        scheduler: decides who runs.
        tokenizer: None for an engine without text: tokens only, no stop strings.
        eos_token_ids: tokens that end a request unless it ignores them.
        max_model_len: tokens a request may hold, as the scheduler has it.
        overlap: launch a step before the tokens of the step before are read.
        bus: receives preemptions, failures and the time of each step.

    Raises:
        ConfigError: the scheduler lets requests grow longer than that.
    """

    def __init__(
        self,
        executor: StepExecutor,
        scheduler: Scheduler,
        *,
        tokenizer: Tokenizer | None,
        eos_token_ids: Collection[int],
        max_model_len: int,
        overlap: bool = False,
        bus: EventBus | None = None,
    ) -> None:
        if max_model_len < scheduler.max_model_len:
            expected = f"at least {scheduler.max_model_len}, as the scheduler has it"
            raise ConfigError("max_model_len of the loop is too small", expected=expected, got=max_model_len)
        self._executor = executor
        self._scheduler = scheduler
        self._overlap = overlap
        self._in_flight: deque[_InFlight] = deque()  # oldest first
        self._copies = CopyRing()  # for their tokens
        self.host_time = HostTime()
        self._read_at = 0.0  # when the tokens of a step were read last
        self._bus = bus or EventBus()
        self._updates = RequestUpdates(
            scheduler,
            tokenizer=tokenizer,
            eos_token_ids=eos_token_ids,
            max_model_len=max_model_len,
            on_end=self._forget,
        )
        self._deadlines = Deadlines()
        self._processed: set[str] = set()  # requests in progress with logits processors, which must see every token
        self._is_stepping = False
        self._is_held = False  # the next step launches nothing
        self._late_aborts: list[str] = []
        self._num_failed_in_a_row = 0
        self._dead: EngineDeadError | None = None

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            RequestError: its id is in use, or it cannot run at all. An id is in use until the last update is delivered.
            EngineDeadError: the engine takes no more requests.
        """
        self._require_alive()
        name = request.request_id
        self._updates.check_id(name)
        self._scheduler.add(request)
        self._updates.follow(request)
        if request.deadline is not None:
            self._deadlines.set(name, request.deadline)
        if request.logits_processors:
            self._processed.add(name)

    def abort(self, request_id: str) -> None:
        """End a request; its last update comes with the next `step`. Unknown ids are ignored."""
        if self._is_stepping:  # a stream that the garbage collector finds in the middle of a step
            self._late_aborts.append(request_id)
        else:
            self._end_early(request_id, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether `step` would do or deliver anything."""
        return bool(self._updates or self._in_flight or self._late_aborts) or self._scheduler.has_work()

    @property
    def earliest_deadline(self) -> float:
        """No request must have ended before it, on the clock of `Request.deadline`."""
        return self._deadlines.earliest if self._deadlines else math.inf

    def settle(self) -> None:
        """Read the steps that are in flight; what they bring comes with the next `step`. For work between two steps.

        Raises:
            RuntimeStateError: from inside a step.
            EngineDeadError: the engine is dead.
        """
        if self._is_stepping:
            raise RuntimeStateError("a step is being run", fix="do it between two steps, not from a sink or callback")
        self._require_alive()
        self._collect_all()
        self._require_alive()

    @property
    def is_ahead(self) -> bool:
        """Whether a step is in flight, whose tokens nobody has read."""
        return bool(self._in_flight)

    def hold(self) -> None:
        """Let the next `step` launch nothing: it reads and delivers what is in flight. For work before the one after
        it, which then keeps no token waiting that is computed already."""
        self._is_held = True

    def step(self) -> list[RequestUpdate]:
        """Launch one step and deliver what is due: its tokens, or with overlap those of the step before.

        A step that fails ends its requests; the next call goes on with the others.

        Raises:
            EngineDeadError: the engine is dead, and the last update of every request was delivered.
        """
        if not self._updates:
            self._require_alive()
        began, waited = time.perf_counter(), self.host_time.waiting_seconds
        num_launched = 0
        self._is_stepping = True
        try:
            if self._dead is None:
                num_launched = self._run_step()
        except Exception as error:  # not one step's: the books of pages and tokens do not add up
            self._die(error)
        finally:
            self._is_stepping = False
        while self._late_aborts:
            self.abort(self._late_aborts.pop())
        updates = self._updates.take()
        self.host_time.num_steps += num_launched
        spent = time.perf_counter() - began
        self.host_time.busy_seconds += spent - (self.host_time.waiting_seconds - waited)
        return updates

    def _run_step(self) -> int:
        """Schedule and launch a step, and read what is due; how many steps were launched."""
        if self._processed or len(self._in_flight) > 1:  # more than one only after an interrupt
            self._collect_all()
        now = None
        if self._deadlines:
            now = time.monotonic()
            for request_id in self._deadlines.take_due(now):
                self._end_early(request_id, FinishReason.TIMEOUT)
        if self._is_held:
            self._is_held = False
            self._collect_all()
            return 0
        batch = self._scheduler.schedule(now=now)
        for request in batch.preempted:
            self._bus.emit(RequestPreempted(request_id=request.request_id, computed_tokens=request.num_tokens))
        self._deliver_failed()
        num_launched = int(self._launch(batch)) if batch.num_reqs else 0
        while len(self._in_flight) > self._overlap * num_launched:
            self._collect()
        return num_launched

    def _launch(self, batch: ScheduledBatch) -> bool:
        """Launch a step; False when it failed."""
        launched_at = time.perf_counter()
        try:
            output = self._executor.execute(batch)
            sample = None
            if batch.sampling:
                sample = PendingSample(
                    output.token_ids,
                    output.logits,
                    batch.sampling,
                    output.errors,
                    is_plain=batch.is_plain,
                    ring=self._copies,
                )
        except Exception as error:
            if leaves_device_usable(error):
                self._collect_all()  # tokens of the steps before belong to their requests, also to those that end now
            self._fail(batch, error)
            return False
        except BaseException:
            # The same step comes again, and may by then have overwritten the tokens that it is fed on the device.
            self._collect_all()
            raise
        self._scheduler.advance(batch)
        self._in_flight.append(_InFlight(batch, sample, output.labels, launched_at))
        return True

    def _collect_all(self) -> None:
        while self._in_flight:
            self._collect()

    def _collect(self) -> None:
        """Read the oldest step's tokens and hand them out; requests that have ended meanwhile get none."""
        step = self._in_flight[0]
        batch = step.batch
        if step.sample is None:
            self._in_flight.popleft()
            self._scheduler.complete(batch, _NO_TOKENS)
            return
        began = time.perf_counter()
        try:
            result = step.sample.read()
        except Exception as error:
            self._in_flight.popleft()
            self._fail(batch, error)
            return
        self._in_flight.popleft()
        step.sample.release()  # not before: a step whose reading is interrupted is read again
        now = time.perf_counter()
        self.host_time.waiting_seconds += now - began
        if step.labels is not None:
            mode, bucket, reason = step.labels
            seconds = now - max(step.launched_at, self._read_at)
            self._bus.emit(StepFinished(runtime_mode=mode, bucket=bucket, reason=reason, seconds=seconds))
        self._read_at = now
        self._num_failed_in_a_row = 0
        if result.errors:
            for request in batch.sampling:
                failed = result.errors.get(request.request_id)
                if failed is not None and not request.is_finished:
                    self._scheduler.finish(request, FinishReason.ERROR, failed)
                    self._updates.end(request, FinishReason.ERROR, failed)
        try:
            self._scheduler.complete(batch, result.chosen)
            self._updates.hand_out(batch, result)
        except Exception:
            raise
        except BaseException as error:  # some have their token and some do not: better no answer than a wrong one
            self._die(error)
            raise

    def _fail(self, batch: ScheduledBatch, error: Exception) -> None:
        """End the requests of a step that failed, or all of them where the device is lost."""
        if self._dead is not None:  # found out when the step before was read
            return
        if not leaves_device_usable(error):
            self._die(error)
            return
        failed = step_failed(error, num_reqs=batch.num_reqs)
        for request in self._scheduler.drop(batch, failed):
            self._updates.end(request, FinishReason.ERROR, failed)
        self._num_failed_in_a_row += 1
        self._bus.emit(
            StepFailed(error=str(failed), num_reqs=batch.num_reqs, num_in_a_row=self._num_failed_in_a_row),
        )

    def _die(self, error: BaseException) -> None:
        """End every request; nothing is run from here on."""
        self._dead = dead = engine_dead(error)
        self._in_flight.clear()
        self._deliver_failed()
        ended = self._scheduler.end_all(dead)
        for request in ended:
            self._updates.end(request, FinishReason.ERROR, dead)
        for request in self._updates.followed:  # ended as the books broke, before it could be said
            self._updates.end(request, FinishReason.ERROR, dead)
        self._bus.emit(EngineDied(error=str(dead), num_reqs=len(ended)))

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead.message, fix=self._dead.fix) from self._dead.__cause__

    def _deliver_failed(self) -> None:
        """Say the end of requests that the scheduler itself has ended."""
        for request in self._scheduler.take_failed():
            assert request.finish_reason is not None, "the scheduler has ended it"
            self._updates.end(request, request.finish_reason, request.error)

    def _end_early(self, request_id: str, reason: FinishReason) -> None:
        try:
            ended = self._scheduler.end(request_id, reason)
        except PageIntegrityError as error:
            self._die(error)
            return
        if ended is not None:
            self._updates.end(ended, reason)

    def _forget(self, request_id: str) -> None:
        """Let go of what is kept for a request in progress."""
        self._deadlines.forget(request_id)
        self._processed.discard(request_id)
