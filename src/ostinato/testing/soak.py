"""A soak of the engine's loop: random requests with planted faults, and the books checked after every step.

Requests of random length and settings are aborted, run out of time, are too large, are refused, meet logits that are
not finite or a logits processor that raises, and share steps that fail at launch or when their tokens are read. After
every step: no page lost or shared, every update for a request that has not ended, and nothing kept for those that
have. At rest points, with no request in progress, everything is free and memory is measured.

Any executor will do: the scripted one for the loop's own books, a tiny model on the simulated backend for all of the
engine. Called by tests and by benchmarks/soak.py.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from ostinato.engine.loop import EngineLoop, LaunchedStep, StepExecutor
from ostinato.engine.paging import pages_for
from ostinato.engine.request import FinishReason, LogitsProcessor, Request, SamplingParams, validate_prompt
from ostinato.engine.sampling import PendingSample, SampleResult
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import EngineError, OutOfMemoryError, RequestError, StepFailedError

__all__ = ["FaultyExecutor", "Rest", "Soak", "failing_reads"]

_FATES = {
    "plain": 66, "abort": 10, "deadline": 7, "refused": 5, "too large": 2,
    "not finite": 3, "processor raises": 3, "processor": 4,
}  # fmt: skip
"""What is planted, per hundred requests."""


class FaultyExecutor:
    """Runs steps through ``inner``; some fail before it or after it, and rows of poisoned requests are NaN.

    Args:
        inner: the executor that computes.
        rng: decides which steps fail.
        failing_share: of all steps.
    """

    def __init__(self, inner: StepExecutor, rng: random.Random, *, failing_share: float) -> None:
        self._inner = inner
        self._rng = rng
        self._failing_share = failing_share
        self.poisoned: dict[str, int] = {}
        """Request id -> output position whose logits are not finite."""
        self.num_failed = 0

    def execute(self, batch: ScheduledBatch) -> LaunchedStep:
        """Launch a step, or raise."""
        draw = self._rng.random()
        if draw < self._failing_share / 2:
            self._fail(torch.OutOfMemoryError("planted: out of memory before the launch"))
        output: Any = self._inner.execute(batch)
        if draw < self._failing_share:
            self._fail(ValueError("planted: a break raised"))
        rows = [
            row
            for row, request in enumerate(batch.sampling)
            if self.poisoned.get(request.request_id, math.inf) <= request.num_output_tokens
        ]
        if not rows:
            return output  # type: ignore[no-any-return]
        with torch.inference_mode():
            logits = output.logits.clone()
            logits[rows] = math.nan
            output.token_ids[rows] = -1
        return SimpleNamespace(logits=logits, token_ids=output.token_ids, errors=output.errors, labels=output.labels)

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        raise error


@contextmanager
def failing_reads(rng: random.Random, share: float) -> Iterator[list[int]]:
    """Within, this share of the reads of a step's tokens raises; the list's one entry counts them."""
    read, num_failed = PendingSample.read, [0]

    def fails(self: PendingSample) -> SampleResult:
        if rng.random() < share:
            num_failed[0] += 1
            raise RuntimeError("planted: the tokens were lost on the way")
        return read(self)

    with mock.patch.object(PendingSample, "read", fails):
        yield num_failed


@dataclass(frozen=True, kw_only=True)
class Rest:
    """A moment without requests in progress."""

    num_requests: int
    """Ended or refused so far."""
    allocated_blocks: int
    """`sys.getallocatedblocks`, after a garbage collection."""
    live_requests: int
    """`Request` records that somebody still holds."""
    rss_mib: float


@dataclass(eq=False)
class _Watched:
    """What is remembered of a request in progress."""

    request: Request
    fate: str
    fits: bool
    abort_at_step: float
    token_ids: list[int] = field(default_factory=list)


class Soak:
    """Random traffic through one loop.

    Args:
        loop: its executor is wrapped in a `FaultyExecutor`; it has no request yet.
        vocab_size: prompts are drawn from it.
        max_model_len: tokens a request may hold.
        max_num_reqs: requests that run at once; up to three times as many are in progress.
        seed: of the traffic and of the faults. Deadlines go by the clock, so runs differ by a few ends.
        failing_share: of steps that fail at launch.
        max_output_tokens: longest output that is asked for.
        at_rest: called before memory is measured, to empty caches that have a limit of their own.
    """

    def __init__(
        self,
        loop: EngineLoop,
        *,
        vocab_size: int,
        max_model_len: int,
        max_num_reqs: int,
        seed: int = 0,
        failing_share: float = 0.004,
        max_output_tokens: int = 24,
        at_rest: Callable[[], object] | None = None,
    ) -> None:
        self.loop = loop
        self._at_rest = at_rest
        self.rng = random.Random(seed)
        self.faulty = FaultyExecutor(loop._executor, random.Random(seed + 1), failing_share=failing_share)
        loop._executor = self.faulty
        self._scheduler = loop._scheduler
        self._allocator = loop._scheduler._allocator
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_in_progress = 3 * max_num_reqs
        self._max_num_reqs = max_num_reqs
        self._max_output_tokens = max_output_tokens
        self._watched: dict[str, _Watched] = {}
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()
        self._serial = 0
        self.ends: Counter[str] = Counter()
        """By fate and end."""
        self.num_steps = self.num_ended = self.num_preemptions = 0
        self.peak_used_pages = self.peak_waiting = self.num_tokens = 0
        self.rests: list[Rest] = []
        self.undisturbed: list[tuple[list[int], SamplingParams, list[int]]] = []
        """Prompt, settings and tokens of the first greedy answers that came to their end, to be asked again."""

    def run(self, num_requests: int, *, num_rests: int = 10) -> None:
        """Let ``num_requests`` come and end.

        Raises:
            AssertionError, PageIntegrityError: the engine lost its way.
        """
        for rest in range(1, num_rests + 1):
            goal = num_requests * rest // num_rests
            idle_steps = 0
            while self._serial < goal or self._watched:
                while self._serial < goal and len(self._watched) < self._max_in_progress and self.rng.random() < 0.7:
                    self._arrive()
                ended_before = self.num_ended
                self._step()
                idle_steps = 0 if self.num_ended > ended_before else idle_steps + 1
                assert idle_steps < 1000 + 10 * self._max_model_len, "requests are in progress and none ends"
            self._rest()

    def _arrive(self) -> None:
        rng, self._serial = self.rng, self._serial + 1
        (fate,) = rng.choices(list(_FATES), list(_FATES.values()))
        capacity = self._allocator.num_usable_pages * self._allocator.page_size
        name = f"soak-{self._serial}"
        most = self._max_model_len - 1
        length = min(most, int(math.exp(rng.uniform(0, math.log(most)))))
        if fate == "too large":
            length = min(most, capacity + rng.randint(1, 9))
        prompt = [rng.randrange(self._vocab_size) for _ in range(length)]
        params = self._draw_params()
        processors: tuple[LogitsProcessor, ...] = ()
        if fate == "processor":
            processors = (_cooler,)
        elif fate == "processor raises":
            processors = (_cooler, _raises_after(len(prompt) + rng.randrange(4)))
        elif fate == "not finite":
            self.faulty.poisoned[name] = rng.randrange(4)
        deadline = time.monotonic() + rng.expovariate(20) if fate == "deadline" else None
        if fate == "refused":
            name, prompt = self._spoil(name, prompt)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            params=params,
            deadline=deadline,
            logits_processors=processors,
            is_streamed=self._serial % 2 == 0,
        )
        try:
            validate_prompt(prompt, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
            self.loop.add(request)
        except RequestError:
            assert fate == "refused", f"a good request was refused: {fate}"
            self.ends["refused: RequestError"] += 1
            self.num_ended += 1
            return
        assert fate != "refused", "a bad request was taken"
        num_last = min(request.max_num_tokens, self._max_model_len) - 1  # the last token needs no slot
        fits = pages_for(num_last, self._allocator.page_size) <= self._allocator.num_usable_pages
        abort_at = self.num_steps + rng.randrange(30) if fate == "abort" else math.inf
        self._watched[name] = _Watched(request, fate, fits, abort_at)
        self._requests.add(request)

    def _spoil(self, name: str, prompt: list[int]) -> tuple[str, list[int]]:
        """An id or a prompt that must be refused."""
        bad = [
            (name, []),
            (name, [1] * self._max_model_len),
            (name, [*prompt[:-1], self._vocab_size]),
            (name, [-1]),
        ]
        if self._watched:
            bad.append((self.rng.choice(list(self._watched)), prompt))
        return self.rng.choice(bad)

    def _draw_params(self) -> SamplingParams:
        rng = self.rng
        settings: dict[str, Any] = {"max_tokens": rng.randint(1, self._max_output_tokens)}
        kind = rng.random()
        if kind < 0.25:
            settings |= {"temperature": rng.choice([0.3, 1.0, 3.0]), "top_p": rng.choice([0.7, 1.0])}
            settings["seed"] = rng.choice([None, rng.randrange(1000)])
        elif kind < 0.35:
            settings |= {"repetition_penalty": 1.3, "presence_penalty": 0.5}
        elif kind < 0.45:
            settings["logprobs"] = rng.randrange(4)
        elif kind < 0.55:
            settings["stop_token_ids"] = tuple(rng.randrange(self._vocab_size) for _ in range(8))
        return SamplingParams(**settings)

    def _step(self) -> None:
        for name in [n for n, watched in self._watched.items() if watched.abort_at_step <= self.num_steps]:
            self.loop.abort(name)
            self._watched[name].abort_at_step = math.inf
        preempted_before = {id(r): r.num_preemptions for r in self._scheduler.running}
        updates = self.loop.step()
        self.num_steps += 1
        for update in updates:
            self._take(update)
        self._check(preempted_before)

    def _take(self, update: RequestUpdate) -> None:
        watched = self._watched.get(update.request_id)
        assert watched is not None, f"{update.request_id} has ended or never was, and got {update}"
        watched.token_ids += update.token_ids
        self.num_tokens += len(update.token_ids)
        if update.finish_reason is None:
            return
        request = watched.request
        assert request.is_finished and not request.pages
        assert watched.token_ids == request.output_token_ids, "tokens were lost or made up"
        assert (update.error is not None) is (update.finish_reason is FinishReason.ERROR)
        assert self._is_due(watched, update), f"a {watched.fate} request ended with {update}"
        end = str(update.finish_reason) if update.error is None else type(update.error).__name__
        self.ends[f"{watched.fate}: {end}"] += 1
        self.num_ended += 1
        del self._watched[update.request_id]
        self.faulty.poisoned.pop(update.request_id, None)
        is_whole = update.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if is_whole and request.is_plain and not self.rests and len(self.undisturbed) < 200:
            self.undisturbed.append((request.prompt_token_ids, request.params, watched.token_ids))

    def _is_due(self, watched: _Watched, update: RequestUpdate) -> bool:
        """Whether a request of this fate may end so."""
        fate, error = watched.fate, update.error
        if update.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            return fate != "too large"
        if update.finish_reason is FinishReason.ABORT:
            return fate == "abort"
        if update.finish_reason is FinishReason.TIMEOUT:
            return fate == "deadline"
        if isinstance(error, StepFailedError):
            return "planted" in error.message
        if isinstance(error, OutOfMemoryError):
            return not watched.fits
        words = {"not finite": "not finite", "processor raises": "planted"}.get(fate)
        return type(error) is EngineError and words is not None and words in error.message

    def _check(self, preempted_before: dict[int, int]) -> None:
        """The books, between two steps."""
        running, waiting = self._scheduler.running, self._scheduler.waiting
        self._allocator.check_integrity([request.pages for request in running])
        assert not any(request.pages for request in waiting) and len(running) <= self._max_num_reqs
        in_progress = {request.request_id for request in (*running, *waiting)}
        undelivered = {update.request_id for update in self.loop._updates._untaken}
        assert not in_progress & undelivered
        # Those that can never fit end at once, and are told of by the next step.
        untold = {request.request_id for request in self._scheduler._failed}
        assert in_progress | undelivered | untold == set(self._watched), "a request was lost, or outlives its end"
        assert {request.request_id for request in self.loop._updates.followed} == in_progress | untold
        assert self.loop._processed <= in_progress | untold and len(self.loop._in_flight) <= 1
        assert set(self.loop._deadlines._by_id) <= in_progress | untold
        self.num_preemptions += sum(
            request.num_preemptions > preempted_before.get(id(request), request.num_preemptions) for request in waiting
        )
        used = self._allocator.num_usable_pages - self._allocator.num_free_pages
        self.peak_used_pages = max(self.peak_used_pages, used)
        self.peak_waiting = max(self.peak_waiting, len(waiting))

    def _rest(self) -> None:
        while self.loop.has_work():  # a step too many, of a request that a token ended
            assert self.loop.step() == []
        assert self._allocator.num_free_pages == self._allocator.num_usable_pages, "pages are lost"
        assert self.num_ended == self._serial, "a request was lost or answered twice"
        if self._at_rest is not None:
            self._at_rest()
        gc.collect()
        self.rests.append(
            Rest(
                num_requests=self.num_ended,
                allocated_blocks=sys.getallocatedblocks(),
                live_requests=len(self._requests),
                rss_mib=round(_rss_bytes() / 2**20, 1),
            )
        )


def _cooler(_token_ids: list[int], logits: Any) -> Any:
    return logits * 0.5


def _raises_after(num_tokens: int) -> LogitsProcessor:
    def process(token_ids: list[int], logits: Any) -> Any:
        if len(token_ids) >= num_tokens:
            raise KeyError("planted: a processor raised")
        return logits

    return process


def _rss_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0
