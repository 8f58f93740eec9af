"""What a step finds on the device, where mirrors keep what they hold and copies queue up behind a busy stream."""

from __future__ import annotations

import random

import pytest
import torch

from ostinato.engine.execution.batch_slots import batch_slots
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import FinishReason, Request, SamplingParams, natural_finish
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.runtime import HostSlots
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Staging, StaticBuffers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"
PAGE_SIZE, MAX_LEN, NUM_STEPS = 4, 40, 200


def test_the_device_gets_what_would_be_written_anew() -> None:
    rng = random.Random(0)
    limits = {"max_num_reqs": 4, "max_num_batched_tokens": 8, "max_model_len": MAX_LEN}
    scheduler = Scheduler(allocator=PageAllocator(41, PAGE_SIZE), **limits)
    slots = batch_slots(vocab_size=100, max_model_len=MAX_LEN, max_num_reqs=4, num_pages=41, page_size=PAGE_SIZE)
    buffers = StaticBuffers(slots, max_sizes={NUM_TOKENS: 8, NUM_REQS: 4}, device=torch.device(DEVICE))
    staging = Staging(buffers)
    keeping, fresh = (BatchWriter(max_num_reqs=4, max_model_len=MAX_LEN, page_size=PAGE_SIZE, seed=0) for _ in range(2))
    unread: ScheduledBatch | None = None
    steps: list[tuple[dict[str, torch.Tensor], HostSlots]] = []
    num_in_place = 0
    for number in range(NUM_STEPS):
        if rng.random() < 0.1:
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 6))]
            params = SamplingParams(max_tokens=rng.randint(1, 30))
            scheduler.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params))
        batch = scheduler.schedule()
        if batch.num_reqs:
            sizes = {NUM_TOKENS: next(size for size in (2, 4, 8) if size >= batch.num_tokens), NUM_REQS: 4}
            if DEVICE == "cuda":
                torch.cuda._sleep(100_000)  # the copies queue up behind this
            host = staging.open(sizes)
            num_in_place += host.kept is not None
            keeping.write(host, batch)
            staging.upload(sizes)
            found = {name: view.clone() for name, view in buffers.views(sizes).items()}
            expected = HostSlots(
                {name: torch.full(view.shape, 77, dtype=view.dtype) for name, view in buffers.views(sizes).items()}
            )
            fresh.write(expected, batch)
            steps.append((found, expected))
            scheduler.advance(batch)
        if unread is not None:  # one step late, as an engine reads
            scheduler.complete(unread, {request.request_id: rng.randrange(100) for request in unread.sampling})
            for request in unread.sampling:
                if natural_finish(request, eos_token_ids=(), max_model_len=MAX_LEN):
                    scheduler.finish(request, FinishReason.LENGTH)
        unread = batch if batch.num_reqs else None
    for found, expected in steps:
        for name, tensor in found.items():
            assert torch.equal(tensor.cpu(), expected[name]), name
    assert num_in_place > len(steps) / 4 > 20
