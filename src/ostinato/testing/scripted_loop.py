"""`EngineLoop` without a model: each request gets the tokens of its script, steps fail when told to.

For tests of what the loop, the scheduler and whoever drives them make of ends, aborts and failures. No kernels run and
no memory moves; use a tiny model on the simulated backend for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from ostinato.engine.loop import EngineLoop
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import LogitsProcessor, Request, SamplingParams
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.engine.text import Tokenizer
from ostinato.engine.updates import RequestUpdate
from ostinato.telemetry import Event, EventBus
from ostinato.testing.sampling import ChosenTokens, choose_for

__all__ = ["EOS", "VOCAB_SIZE", "ScriptedExecutor", "ScriptedLoop"]

VOCAB_SIZE: Final = 272
EOS: Final = 269
"""The tiny models' vocabulary and end token."""


class ScriptedExecutor:
    """Gives each request the tokens of its script; a script's NaN makes the whole row NaN."""

    def __init__(self) -> None:
        self.scripts: dict[str, Sequence[float]] = {}
        self.batches: list[ScheduledBatch] = []
        self.failures: list[BaseException | None] = []
        """What the next steps raise, one each; None for a step that succeeds."""

    def execute(self, batch: ScheduledBatch) -> ChosenTokens:
        self.batches.append(batch)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        logits = torch.zeros(len(batch.sampling), VOCAB_SIZE)
        for row, request in zip(logits, batch.sampling, strict=True):
            script = self.scripts[request.request_id]
            token = script[min(request.num_output_tokens, len(script) - 1)]  # with overlap, one step too many
            if math.isnan(token):
                row.fill_(math.nan)
            else:
                row[int(token)] = 10.0
        return choose_for(logits, batch.sampling)


class ScriptedLoop:
    """A loop over the scripted executor. Pages of 4 tokens; ``limits`` are those of `Scheduler`, and ``num_pages``."""

    def __init__(self, tokenizer: Tokenizer | None, *, overlap: bool = False, eos: int = EOS, **limits: int) -> None:
        self.overlap = overlap
        self.eos = eos
        self.executor = ScriptedExecutor()
        self.allocator = PageAllocator(limits.pop("num_pages", 100), 4)
        limits = {"max_num_reqs": 8, "max_num_batched_tokens": 32, "max_model_len": 64, **limits}
        self.scheduler = Scheduler(allocator=self.allocator, **limits)  # type: ignore[arg-type]  # limits are ints
        self.events: list[Event] = []
        self.loop = EngineLoop(
            self.executor,
            self.scheduler,
            tokenizer=tokenizer,
            eos_token_ids={self.eos},
            max_model_len=limits["max_model_len"],
            overlap=overlap,
            bus=EventBus(self),
        )

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def add(
        self,
        name: str,
        script: Sequence[float],
        *,
        prompt: int = 3,
        deadline: float | None = None,
        processors: Sequence[LogitsProcessor] = (),
        is_streamed: bool = True,
        **params: Any,
    ) -> Request:
        request = Request(
            request_id=name,
            prompt_token_ids=list(range(prompt)),
            params=SamplingParams(**params),
            deadline=deadline,
            logits_processors=tuple(processors),
            is_streamed=is_streamed,
        )
        self.executor.scripts[name] = script
        self.loop.add(request)
        return request

    def run(self, *, max_steps: int = 200) -> dict[str, list[RequestUpdate]]:
        """Step until nothing is left; the updates by request."""
        found: dict[str, list[RequestUpdate]] = {}
        for _ in range(max_steps):
            if not self.loop.has_work():
                break
            for update in self.loop.step():
                found.setdefault(update.request_id, []).append(update)
        else:
            raise AssertionError("the loop does not end")
        self.allocator.check_integrity([])
        assert not self.loop._updates.followed, "text state of ended requests is kept"
        assert not self.loop._deadlines and not self.loop._processed and not self.scheduler._launched
        return found
