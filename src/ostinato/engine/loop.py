"""`EngineLoop`: one step of the engine: schedule, launch, sample, deliver.

Owns no model and no thread: it ties the scheduler, the executor, sampling and text together. With ``overlap`` a
step is launched before the tokens of the step before are read, so that the host's work runs while the device
computes; a request that a token ends (a stop token, a stop string) has then run one step too many, whose token
nobody sees. A request that goes wrong ends alone; an exception that leaves `step` leaves the same step to be
scheduled again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ostinato.engine.request import FinishReason, Request, TokenLogprobs, natural_finish
from ostinato.engine.sampling import PendingSample, start_sampling
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.engine.text import IncrementalDetokenizer, StopStrings, Tokenizer
from ostinato.errors import OstinatoError
from ostinato.telemetry import EventBus, RequestPreempted

__all__ = ["EngineLoop", "HostTime", "LaunchedStep", "RequestUpdate", "StepExecutor"]


class LaunchedStep(Protocol):
    """What the loop needs of `execution.StepOutput`."""

    @property
    def logits(self) -> torch.Tensor:
        """[num_sampling, vocab], of the items that sample, in order."""
        ...

    @property
    def token_ids(self) -> torch.Tensor:
        """[num_sampling] int64, greedy choices; written by the sampler, read by the next step."""
        ...

    @property
    def newest(self) -> torch.Tensor | None:
        """[num_sampling] int64, the tokens that were pending when the step was launched, or None."""
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


@dataclass(kw_only=True, slots=True)
class RequestUpdate:
    """What one step brought for one request. Not frozen only because that would double its cost: one a token."""

    request_id: str
    text: str = ""
    """New text; held back while it may be the start of a stop string or half a character."""
    token_ids: tuple[int, ...] = ()
    """New tokens."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: OstinatoError | None = None


@dataclass
class _TextState:
    """Turns one request's tokens into text."""

    detokenizer: IncrementalDetokenizer | None
    stops: StopStrings

    def push(self, token_id: int) -> tuple[str, bool]:
        """New text, and whether a stop string was met."""
        if self.detokenizer is None:
            return "", False
        text, hit = self.stops.push(self.detokenizer.push(token_id))
        return text, hit is not None

    def flush(self) -> str:
        """What was held back, at the end of a request that no stop string has ended."""
        if self.detokenizer is None:
            return ""
        text, hit = self.stops.push(self.detokenizer.flush())
        return text if hit is not None else text + self.stops.flush()


class EngineLoop:
    """Runs requests to their end, a step at a time. Used by one thread.

    Args:
        executor: runs batches.
        scheduler: decides who runs.
        tokenizer: None for an engine without text: tokens only, no stop strings.
        eos_token_ids: tokens that end a request unless it ignores them.
        max_model_len: tokens a request may hold.
        seed: of the stream for requests without a seed of their own.
        overlap: launch a step before the tokens of the step before are read.
        bus: receives preemption events.
    """

    def __init__(
        self,
        executor: StepExecutor,
        scheduler: Scheduler,
        *,
        tokenizer: Tokenizer | None,
        eos_token_ids: Collection[int],
        max_model_len: int,
        seed: int = 0,
        overlap: bool = False,
        bus: EventBus | None = None,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self._generator = torch.Generator().manual_seed(seed)
        self._overlap = overlap
        self._in_flight: _InFlight | None = None
        self.host_time = HostTime()
        self._bus = bus or EventBus()
        self._texts: dict[str, _TextState] = {}
        self._undelivered: list[RequestUpdate] = []

    def add(self, request: Request) -> None:
        """Take a request.

        Raises:
            RequestError: its id is in use, or it cannot run at all.
        """
        self._scheduler.add(request)
        detokenizer = None if self._tokenizer is None else IncrementalDetokenizer(self._tokenizer)
        self._texts[request.request_id] = _TextState(detokenizer, StopStrings(request.params.stop))

    def abort(self, request_id: str) -> None:
        """End a request; its last update comes with the next `step`. Unknown ids are ignored."""
        if self._scheduler.abort(request_id) is not None:
            self._undelivered.append(self._last_update(request_id, FinishReason.ABORT))

    def has_work(self) -> bool:
        """Whether `step` would do or deliver anything."""
        return bool(self._undelivered) or self._in_flight is not None or self._scheduler.has_work()

    def step(self) -> list[RequestUpdate]:
        """Launch one step and deliver what is due: its tokens, or with overlap those of the step before.

        An exception loses nothing: what was to be delivered comes with the next call.
        """
        began, waited = time.perf_counter(), self.host_time.waiting_seconds
        batch = self._scheduler.schedule()
        for request in batch.preempted:
            self._bus.emit(RequestPreempted(request_id=request.request_id, computed_tokens=request.num_tokens))
        for request in self._scheduler.take_failed():
            assert request.finish_reason is not None, "the scheduler has ended it"
            last = self._last_update(request.request_id, request.finish_reason, request.error)
            self._undelivered.append(last)
        launched = self._launch(batch) if batch.items else None
        if self._overlap:
            due, self._in_flight = self._in_flight, launched
        else:
            due = launched
        if due is not None:
            self._undelivered += self._collect(due)
        updates, self._undelivered = self._undelivered, []
        self.host_time.num_steps += launched is not None
        spent = time.perf_counter() - began
        self.host_time.busy_seconds += spent - (self.host_time.waiting_seconds - waited)
        return updates

    def _launch(self, batch: ScheduledBatch) -> _InFlight:
        output = self._executor.execute(batch)
        sample = None
        if batch.sampling:
            sample = start_sampling(
                output.logits,
                batch.sampling,
                greedy=output.token_ids,
                newest=output.newest,
                generator=self._generator,
            )
        self._scheduler.advance(batch)
        return _InFlight(batch, sample)

    def _collect(self, step: _InFlight) -> list[RequestUpdate]:
        """Read a step's tokens and hand them out; requests that have ended meanwhile get none."""
        batch = step.batch
        if step.sample is None:
            self._scheduler.complete(batch, {})
            return []
        began = time.perf_counter()
        result = step.sample.read()
        self.host_time.waiting_seconds += time.perf_counter() - began
        updates = []
        if result.errors:
            for request in batch.sampling:
                error = result.errors.get(request.request_id)
                if error is not None and not request.is_finished:
                    self._scheduler.finish(request, FinishReason.ERROR, error)
                    updates.append(self._last_update(request.request_id, FinishReason.ERROR, error))
        sampled = {r.request_id: t for r, t in zip(batch.sampling, result.token_ids, strict=True)}
        self._scheduler.complete(batch, sampled)
        for request, logprobs in zip(batch.sampling, result.logprobs, strict=True):
            if not request.is_finished:
                updates.append(self._deliver(request, logprobs))
        return updates

    def _deliver(self, request: Request, logprobs: TokenLogprobs | None) -> RequestUpdate:
        """Text and end of a request that has just got a token."""
        token_id = request.output_token_ids[-1]
        if logprobs is not None:
            request.logprobs.append(logprobs)
        reason = natural_finish(request, eos_token_ids=self._eos_token_ids, max_model_len=self._max_model_len)
        state = self._texts[request.request_id]
        is_stop_token = reason is FinishReason.STOP
        text, met_stop = ("", False) if is_stop_token else state.push(token_id)  # a stop token is no text
        if met_stop:
            reason = FinishReason.STOP
        elif reason is not None:
            text += state.flush()
        if reason is not None:
            self._scheduler.finish(request, reason)
            del self._texts[request.request_id]
        return RequestUpdate(
            request_id=request.request_id,
            text=text,
            token_ids=(token_id,),
            logprobs=() if logprobs is None else (logprobs,),
            finish_reason=reason,
        )

    def _last_update(self, request_id: str, reason: FinishReason, error: OstinatoError | None = None) -> RequestUpdate:
        state = self._texts.pop(request_id, None)
        text = "" if state is None or error is not None else state.flush()
        return RequestUpdate(request_id=request_id, text=text, finish_reason=reason, error=error)
