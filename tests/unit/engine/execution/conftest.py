"""Executors of tiny models, hand-made batches for them, and an attention backend that any graph may hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.engine.attention import AttentionMetadata, set_forward_context
from ostinato.engine.attention.torch_backend import TorchAttention
from ostinato.engine.attention.torch_decode import attend_uniform
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import Executor, load_model
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.step_context import graph_metadata, live_metadata
from ostinato.engine.kvcache import LayerCache
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest, Scheduler
from ostinato.runtime import CaptureSupport, Decision, RuntimeMode
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "max_model_len": 300,  # two KV tiers: 256 and 300
    "max_num_reqs": 6,
    "max_num_batched_tokens": 24,
    "kv_tokens": 1024,
    "decode_sizes": (1, 4, 6),
    "token_sizes": (8, 16, 24),
}


class AnyBatchAttention(TorchAttention):
    """Torch attention that reads no host lengths for mixed batches either, so that mode "full" means full.

    Each row is looked up on the device and attends as a decode of its own.
    """

    capture_support = CaptureSupport.ALWAYS

    def attend(self, q: Tensor, out: Tensor, cache: LayerCache, metadata: AttentionMetadata, scale: float) -> None:
        if metadata.uniform_query_len is not None:
            return super().attend(q, out, cache, metadata, scale)
        rows = torch.arange(q.shape[0], dtype=torch.int32)
        ends = metadata.query_start[1:].contiguous()
        owner = torch.searchsorted(ends, rows, right=True)
        is_live = owner < metadata.num_reqs
        owner = owner.clamp(max=metadata.num_reqs - 1)
        visible = torch.where(is_live, metadata.seq_lens[owner] - (ends[owner] - rows) + 1, 0)
        by_row = AttentionMetadata(
            num_tokens=metadata.num_tokens,
            slot_mapping=metadata.slot_mapping,
            block_tables=metadata.block_tables[owner],
            seq_lens=visible,
            query_start=metadata.query_start,
        )
        return attend_uniform(q, out, cache, by_row, scale, 1)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> checkpoint folder."""

    @functools.cache
    def make(family: str) -> Path:
        return write_tiny_model(tmp_path_factory.mktemp(family), family)

    return make


ExecutorMaker = Callable[..., Executor]


def open_executor(directory: Path, *, always: bool = False, **settings: Any) -> Executor:
    """A captured executor; ``always=True`` gives it `AnyBatchAttention`."""
    with pytest.MonkeyPatch.context() as patch:
        if always:
            name = "ostinato.engine.execution.executor.get_attention_backend"
            patch.setattr(name, lambda *_: AnyBatchAttention())
        executor = Executor(load_model(EngineConfig(model=str(directory), **{**SETTINGS, **settings})))
    Captures(executor).start()
    return executor


@pytest.fixture(scope="session")
def shared_executor(tiny_dir: Callable[[str], Path]) -> Iterator[ExecutorMaker]:
    """Executors that tests share, since each test fills the cache afresh: ``(family, mode=..., always=...)``."""
    with ExitStack() as stack:

        @functools.cache
        def make(family: str = "llama", *, mode: str, always: bool = False, **settings: Any) -> Executor:
            executor = open_executor(tiny_dir(family), mode=mode, always=always, **settings)
            stack.callback(executor.close)
            return executor

        yield make


@pytest.fixture
def make_executor(tiny_dir: Callable[[str], Path]) -> Iterator[ExecutorMaker]:
    """Executors of the test's own, closed at its end."""
    with ExitStack() as stack:

        def make(family: str = "llama", **settings: Any) -> Executor:
            executor = open_executor(tiny_dir(family), **settings)
            stack.callback(executor.close)
            return executor

        yield make


class BatchMaker:
    """Batches at any point of their requests' lives, over a cache whose history is random.

    Slots that no live token of the batch owns hold NaN, so that whoever reads one shows it.
    """

    def __init__(self, executor: Executor, *, seed: int = 0) -> None:
        self.executor = executor
        self._random = torch.Generator().manual_seed(seed)

    def __call__(
        self, parts: Sequence[tuple[int, int]], *, is_decode: bool = False, partial: int = 0
    ) -> ScheduledBatch:
        """A batch of (tokens computed before, new tokens) each; the last ``partial`` requests do not sample yet."""
        page_size = self.executor._page_size
        free = (torch.randperm(self.executor.num_pages - 1, generator=self._random) + 1).tolist()
        items = []
        for index, (start, num_new) in enumerate(parts):
            is_partial = index >= len(parts) - partial
            tokens = torch.randint(272, (start + num_new + is_partial,), generator=self._random).tolist()
            num_prompt = len(tokens) - 1 if is_decode else len(tokens)
            request = Request(
                request_id=str(index),
                prompt_token_ids=tokens[:num_prompt],
                output_token_ids=tokens[num_prompt:],
                num_computed_tokens=start,
                pages=[free.pop() for _ in range(-(-(start + num_new) // page_size))],
            )
            assert request.is_decode is is_decode
            items.append(ScheduledRequest(request, start, num_new, not is_partial, is_decode))
        self._fill_caches(items)
        return ScheduledBatch(tuple(items))

    def slots(self, items: Sequence[ScheduledRequest], *, new_only: bool = False) -> list[int]:
        """Slots of the tokens known after (or written by) this step."""
        page_size = self.executor._page_size
        return [
            item.request.pages[i // page_size] * page_size + i % page_size
            for item in items
            for i in range(item.start if new_only else 0, item.end)
        ]

    def _fill_caches(self, items: Sequence[ScheduledRequest]) -> None:
        history = sorted(set(self.slots(items)) - set(self.slots(items, new_only=True)))
        for flat in flat_caches(self.executor):
            flat.fill_(float("nan"))
            flat[0] = 0.0
            flat[history] = torch.randn((len(history), *flat.shape[1:]), generator=self._random)


def flat_caches(executor: Executor) -> list[Tensor]:
    """Every cache tensor as [num_slots, num_kv_heads, head_dim]."""
    return [pages.view(-1, *pages.shape[2:]) for cache in executor.caches for pages in (cache.key, cache.value)]


def bits(tensor: Tensor) -> Tensor:
    """The float32 values as integers, so that equal means the same bits, NaN included."""
    return tensor.contiguous().view(torch.int32)


def changed_slots(before: Sequence[Tensor], after: Sequence[Tensor]) -> set[int]:
    """Slots where any cache tensor differs by a bit."""
    changed: set[int] = set()
    for old, new in zip(before, after, strict=True):
        changed |= set((bits(old) != bits(new)).flatten(1).any(1).nonzero().flatten().tolist())
    return changed


def decision_for(executor: Executor, batch: ScheduledBatch) -> Decision:
    return executor.graphed.decide(executor._live_batch(batch))


def eager_forward(executor: Executor, batch: ScheduledBatch, decision: Decision) -> Tensor:
    """`Executor.forward` without a graph, on what the last step left in the static buffers, at its padded shape."""
    slots = executor.graphed.buffers.views(executor.graphed.sizes(decision))
    if decision.runtime_mode is RuntimeMode.FULL:
        assert decision.key is not None
        metadata = graph_metadata(decision.key, slots, page_size=executor._page_size)
    else:
        metadata = live_metadata(batch, slots, page_size=executor._page_size)
    executor._in_full_graph = decision.runtime_mode is RuntimeMode.FULL
    executor._rows_are_requests = decision.key is not None and decision.key.uniform_query_len == 1
    try:
        with torch.inference_mode(), set_forward_context(executor._with(metadata)):
            return executor.forward(**slots)
    finally:
        executor._in_full_graph = False


class Serving:
    """A scheduler in front of an executor, greedy, checking the cache after every step."""

    def __init__(self, executor: Executor, *, kv_pages: int | None = None, **settings: int) -> None:
        self.executor = executor
        config = {**SETTINGS, **settings}
        self.allocator = PageAllocator(kv_pages or executor.num_pages, config["page_size"])
        self.scheduler = Scheduler(
            max_num_reqs=config["max_num_reqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
            allocator=self.allocator,
        )
        self.num_preempted = 0

    def step(self) -> tuple[ScheduledBatch, Tensor]:
        batch = self.scheduler.schedule()
        self.num_preempted += len(batch.preempted)
        logits = self.executor.execute(batch).logits
        sampling = [item.request for item in batch.items if item.samples]
        tokens = logits.argmax(-1).tolist()
        self.scheduler.complete(batch, {r.request_id: t for r, t in zip(sampling, tokens, strict=True)})
        return batch, logits


@pytest.fixture(scope="session")
def helpers() -> Any:
    """The classes and functions of this file: tests cannot import a conftest under import-mode=importlib."""
    return SimpleNamespace(
        BatchMaker=BatchMaker,
        Serving=Serving,
        bits=bits,
        changed_slots=changed_slots,
        decision_for=decision_for,
        eager_forward=eager_forward,
        flat_caches=flat_caches,
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and lose much where a machine is busy."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(previous)
