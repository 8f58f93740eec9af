"""Which steps a trace of requests makes: the engine's own scheduler, driven on a virtual clock without a model.

A step takes a fixed time and a time a token; only through these does a model matter. With bucket sizes, a step takes
the time of its padded size, and `BatchShaper` may shape it. Called by ``ostinato plan`` and by the measurement of
shaping.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.bench.load import TimedRequest
from ostinato.engine.paging import PageAllocator, pages_for
from ostinato.engine.request import FinishReason, Request, SamplingParams
from ostinato.engine.scheduler import BatchShaper, ScheduledBatch, Scheduler
from ostinato.runtime import TrafficHistogram

__all__ = ["StepModel", "VirtualRun", "serve_virtually", "traffic_of"]

_PAGE_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """How steps are made and how long they take. The times are of an 8B model on a current GPU.

    Attributes:
        chunk_tokens: tokens in one step.
        max_num_reqs: requests that run at once.
        step_ms: a step's fixed time.
        token_us: its time for each token, padded ones too.
    """

    chunk_tokens: int = 2048
    max_num_reqs: int = 256
    step_ms: float = 8.0
    token_us: float = 10.0


@dataclass(kw_only=True)
class VirtualRun:
    """What serving a trace came to.

    Attributes:
        decode: rows of decode steps -> steps.
        mixed: tokens of all other steps -> steps.
        padded_tokens: "decode" or "mixed" -> tokens computed for nobody, in steps that a bucket held.
        seconds: of the virtual clock, when the last request ended.
        ttft_ms: for each request, from its arrival to its first token.
        latency_ms: for each request, from its arrival to its last token.
    """

    decode: Counter[int] = field(default_factory=Counter)
    mixed: Counter[int] = field(default_factory=Counter)
    padded_tokens: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)

    def pad_percent(self, kind: str) -> float:
        """Padded tokens of "decode" or "mixed" steps in percent of what those steps computed."""
        padded = self.padded_tokens[kind]
        live = sum(size * count for size, count in (self.decode if kind == "decode" else self.mixed).items())
        return 100 * padded / (live + padded) if live else 0.0


def traffic_of(requests: Sequence[TimedRequest], model: StepModel) -> TrafficHistogram:
    """The steps in which ``requests``, ordered by time, are served."""
    run = serve_virtually(requests, model)
    return TrafficHistogram(decode=run.decode, mixed=run.mixed)


def serve_virtually(
    requests: Sequence[TimedRequest],
    model: StepModel,
    *,
    buckets: Mapping[str, Sequence[int]] | None = None,
    is_shaped: bool = False,
) -> VirtualRun:
    """Serve ``requests``, ordered by time, with as many pages as they can use.

    Args:
        buckets: captured sizes of "decode" and "mixed" steps; a step above the largest of its kind is not padded.
        is_shaped: let a `BatchShaper` shape steps toward the buckets.
    """
    ladders = {kind: sorted((buckets or {}).get(kind, ())) for kind in ("decode", "mixed")}
    shaper = BatchShaper(decode_sizes=ladders["decode"], token_sizes=ladders["mixed"]) if is_shaped else None
    scheduler = _scheduler(requests, model, shaper)
    run = VirtualRun()
    arrivals: dict[str, float] = {}
    while len(arrivals) < len(requests) or scheduler.has_work():
        if not scheduler.has_work():
            run.seconds = max(run.seconds, requests[len(arrivals)].at_seconds)
        while len(arrivals) < len(requests) and requests[len(arrivals)].at_seconds <= run.seconds:
            timed = requests[len(arrivals)]
            name = str(len(arrivals))
            arrivals[name] = timed.at_seconds
            params = SamplingParams(max_tokens=timed.output_tokens)
            scheduler.add(Request(request_id=name, prompt_token_ids=[0] * timed.prompt_tokens, params=params))
        batch = scheduler.schedule()
        run.seconds += _run_step(batch, run, model, ladders)
        scheduler.complete(batch, dict.fromkeys((request.request_id for request in batch.sampling), 0))
        for request in batch.sampling:
            waited_ms = 1e3 * (run.seconds - arrivals[request.request_id])
            if request.num_output_tokens == 1:
                run.ttft_ms.append(waited_ms)
            if request.num_output_tokens >= request.params.max_tokens:
                run.latency_ms.append(waited_ms)
                scheduler.finish(request, FinishReason.LENGTH)
    return run


def _scheduler(requests: Sequence[TimedRequest], model: StepModel, shaper: BatchShaper | None) -> Scheduler:
    longest = max((r.prompt_tokens + r.output_tokens for r in requests), default=1) + 1
    num_reqs = min(model.max_num_reqs, max(len(requests), 1))  # more never run at once
    num_pages = num_reqs * (pages_for(longest, _PAGE_SIZE) + 1) + 1
    return Scheduler(
        max_num_reqs=num_reqs,
        max_num_batched_tokens=model.chunk_tokens,
        max_model_len=longest,
        allocator=PageAllocator(num_pages, _PAGE_SIZE),
        shaper=shaper,
    )


def _run_step(batch: ScheduledBatch, run: VirtualRun, model: StepModel, ladders: Mapping[str, Sequence[int]]) -> float:
    """Count a step; its seconds."""
    kind = "decode" if batch.uniform_query_len == 1 else "mixed"
    num_tokens = batch.num_tokens
    (run.decode if kind == "decode" else run.mixed)[num_tokens] += 1
    ladder = ladders[kind]
    place = bisect_left(ladder, num_tokens)
    padded = ladder[place] - num_tokens if place < len(ladder) else 0
    run.padded_tokens[kind] += padded
    return model.step_ms / 1e3 + model.token_us / 1e6 * (num_tokens + padded)
