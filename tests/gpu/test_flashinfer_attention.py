"""FlashInfer's kernels on a GPU: against float32 attention, in graphs replayed far from their capture, in the engine.

Two modules are compiled for the quick tests (bfloat16, heads of 64: tensor cores, and CUDA cores for ungrouped
heads), about half a minute each on a machine that has none cached; heads of 128 and float16 are slow.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.engine.attention import AttentionMetadata, AttentionShape, get_attention_backend
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import Executor, LoadedModel, load_model
from ostinato.engine.execution.captures import Captures
from ostinato.engine.kvcache import LayerCache, allocate_caches
from ostinato.engine.loop import EngineLoop
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import Scheduler
from ostinato.errors import ConfigError
from ostinato.testing import tiny_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer"),
]

DEVICE = "cuda"
PAGE_SIZE = 16
BF16, F16 = torch.bfloat16, torch.float16
TOLERANCE = {BF16: 2e-2, F16: 4e-3}
CONTEXTS = [1, 15, 16, 17, 128, 129, 700, 1024, 3000]
VARLEN_LENS = [([600, 1, 30], [600, 900, 64]), ([1, 1], [1, 500]), ([33], [1033]), ([1], [1]), ([5] * 40, [77] * 40)]
slow = pytest.mark.slow
VARIANTS = [  # dtype, head size, heads
    (BF16, 64, (32, 8)),
    (BF16, 64, (4, 4)),
    pytest.param(BF16, 128, (32, 8), marks=slow),
    pytest.param(BF16, 128, (8, 8), marks=slow),
    pytest.param(F16, 64, (9, 3), marks=slow),
    pytest.param(BF16, 64, (14, 2), marks=slow),
    pytest.param(BF16, 256, (8, 2), marks=slow),
]


class Step:
    """A random step in ``dtype`` over a shuffled cache, with NaN wherever nobody may read."""

    def __init__(
        self,
        query_lens: list[int],
        context_lens: list[int],
        *,
        heads: tuple[int, int],
        head_dim: int,
        dtype: torch.dtype,
        is_for_graph: bool,
        padded_reqs: int = 0,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query_lens, self.context_lens, self.is_for_graph = query_lens, context_lens, is_for_graph
        self.heads, self.head_dim, self.dtype = heads, head_dim, dtype
        self.live = sum(query_lens)
        rows = self.live + padded_reqs
        num_reqs = len(query_lens) + padded_reqs
        num_pages = 1 + sum(math.ceil(n / PAGE_SIZE) for n in context_lens)
        width = math.ceil(max(context_lens) / PAGE_SIZE) + 3
        order = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()
        self.tables = torch.zeros(num_reqs, width, dtype=torch.int32)
        slots: list[int] = []
        self.cache = self._new_cache(num_pages, dtype)
        for pages in (self.cache.key, self.cache.value):
            pages.fill_(float("nan"))
        self.histories = []
        for request, (length, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            pages_of = [order.pop() for _ in range(math.ceil(context / PAGE_SIZE))]
            self.tables[request, : len(pages_of)] = torch.tensor(pages_of, dtype=torch.int32)
            places = [pages_of[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(context)]
            old = [self._random(generator, context - length, heads[1]) for _ in range(2)]
            for pages, values in zip((self.cache.key, self.cache.value), old, strict=True):
                pages.flatten(0, 1)[places[: context - length]] = values
            self.histories.append(old)
            slots += places[context - length :]
        self.qkv = self._random(generator, rows, heads[0] + 2 * heads[1])
        self.qkv[self.live :] = float("nan")
        self.metadata = AttentionMetadata(
            num_tokens=rows,
            slot_mapping=torch.tensor(slots + [0] * padded_reqs, device=DEVICE),
            block_tables=self.tables.to(DEVICE),
            seq_lens=torch.tensor(context_lens + [0] * padded_reqs, dtype=torch.int32, device=DEVICE),
            query_start=torch.tensor([0, *query_lens, *[0] * padded_reqs]).cumsum(0).to(DEVICE, torch.int32),
            uniform_query_len=1 if is_for_graph else None,
            host_query_lens=None if is_for_graph else tuple(query_lens),
            host_seq_lens=None if is_for_graph else tuple(context_lens),
        )

    def _random(self, generator: torch.Generator, rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, self.head_dim, generator=generator).to(DEVICE, self.dtype)

    def _new_cache(self, num_pages: int, dtype: torch.dtype) -> LayerCache:
        settings: dict[str, Any] = {"num_kv_heads": self.heads[1], "head_dim": self.head_dim, "dtype": dtype}
        return allocate_caches(num_layers=1, num_pages=num_pages, page_size=PAGE_SIZE, device=DEVICE, **settings)[0]

    def split(self) -> tuple[torch.Tensor, ...]:
        return self.qkv.split((self.heads[0], self.heads[1], self.heads[1]), dim=1)

    def plan(self, backend: Any) -> None:
        backend.plan_step(
            query_lens=self.query_lens,
            seq_lens=self.context_lens,
            block_tables=self.tables,
            graph_num_reqs=self.metadata.num_reqs if self.is_for_graph else None,
        )

    def run(self, backend: Any, out: torch.Tensor) -> None:
        q, k, v = self.split()
        backend.write_kv(k, v, self.cache, self.metadata)
        backend.attend(q, out, self.cache, self.metadata, self.head_dim**-0.5)

    def out(self) -> torch.Tensor:
        return torch.full(
            (self.qkv.shape[0], self.heads[0], self.head_dim), float("nan"), dtype=self.dtype, device=DEVICE
        )

    def expected(self) -> torch.Tensor:
        """Dense attention in float32, request by request; zeros in padded rows."""
        q, k, v = (x.float() for x in self.split())
        out = torch.zeros(q.shape, device=DEVICE)
        row = 0
        for (old_k, old_v), length, context in zip(self.histories, self.query_lens, self.context_lens, strict=True):
            group = self.heads[0] // self.heads[1]
            keys = torch.cat((old_k.float(), k[row : row + length])).repeat_interleave(group, dim=1)
            values = torch.cat((old_v.float(), v[row : row + length])).repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", q[row : row + length], keys) * self.head_dim**-0.5
            hidden = torch.ones(length, context, dtype=torch.bool, device=DEVICE).triu(context - length + 1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out[row : row + length] = torch.einsum("hqk,khd->qhd", weights, values)
            row += length
        return out

    def check(self, out: torch.Tensor) -> None:
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(out.float(), self.expected(), rtol=tolerance, atol=tolerance)
        assert not out[self.live :].any(), "padded rows are zeros"


def backend_for(dtype: torch.dtype, head_dim: int, heads: tuple[int, int], *, max_num_reqs: int = 64) -> Any:
    backend: Any = get_attention_backend("flashinfer", DEVICE)
    shape = AttentionShape(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        page_size=PAGE_SIZE,
        dtype=dtype,
        device=torch.device(DEVICE),
        max_num_reqs=max_num_reqs,
        max_num_tokens=2048,
        max_model_len=8192,
    )
    backend.reserve(shape)
    backend.warm_up(shape)
    return backend


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(previous)


# --- kernels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "head_dim", "heads"), VARIANTS)
@pytest.mark.parametrize("padded", [0, 5])
def test_decode(dtype: torch.dtype, head_dim: int, heads: tuple[int, int], padded: int) -> None:
    backend = backend_for(dtype, head_dim, heads)
    for contexts in (CONTEXTS, [1], [3000], [4000] * 3):
        step = Step(
            [1] * len(contexts),
            contexts,
            heads=heads,
            head_dim=head_dim,
            dtype=dtype,
            is_for_graph=True,
            padded_reqs=padded,
        )
        out = step.out()
        step.plan(backend)
        step.run(backend, out)
        step.check(out)


@pytest.mark.parametrize(("dtype", "head_dim", "heads"), VARIANTS)
@pytest.mark.parametrize("lens", VARLEN_LENS)
def test_other_steps(
    dtype: torch.dtype, head_dim: int, heads: tuple[int, int], lens: tuple[list[int], list[int]]
) -> None:
    backend = backend_for(dtype, head_dim, heads)
    step = Step(*lens, heads=heads, head_dim=head_dim, dtype=dtype, is_for_graph=False)
    out = step.out()
    step.plan(backend)
    step.run(backend, out)
    step.check(out)


@pytest.mark.parametrize("heads", [(32, 8), (4, 4)])
@pytest.mark.parametrize("num_reqs", [1, 8, 64])
def test_a_graph_stays_right_far_from_its_capture(heads: tuple[int, int], num_reqs: int) -> None:
    """PITFALLS 10 and 33: captured on padded requests alone, replayed on few and many, short and long contexts."""
    backend = backend_for(BF16, 64, heads)
    rng = random.Random(num_reqs)
    contexts = [6000, *(rng.randint(1, 900) for _ in range(num_reqs - 1))]
    big = Step([1] * num_reqs, contexts, heads=heads, head_dim=64, dtype=BF16, is_for_graph=True)
    out = big.out()
    seq_lens, slots = big.metadata.seq_lens.clone(), big.metadata.slot_mapping.clone()
    big.metadata.seq_lens.zero_()
    big.metadata.slot_mapping.zero_()
    nobody: dict[str, Any] = {"query_lens": [], "seq_lens": [], "block_tables": big.tables, "graph_num_reqs": num_reqs}
    backend.plan_step(**nobody)
    big.run(backend, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        big.run(backend, out)
    graph.replay()
    assert not out.any()
    big.metadata.seq_lens.copy_(seq_lens)
    big.metadata.slot_mapping.copy_(slots)
    expected = big.expected()
    for num_live in [num_reqs, 1, *(rng.randint(1, num_reqs) for _ in range(3)), num_reqs]:
        big.metadata.slot_mapping[:num_live] = slots[:num_live]
        big.metadata.slot_mapping[num_live:] = 0
        out.fill_(float("nan"))
        backend.plan_step(
            query_lens=[1] * num_live,
            seq_lens=big.context_lens[:num_live],
            block_tables=big.tables,
            graph_num_reqs=num_reqs,
        )
        graph.replay()
        torch.testing.assert_close(out[:num_live].float(), expected[:num_live], rtol=2e-2, atol=2e-2)
        assert not out[num_live:].any()


def test_plans_made_while_the_device_is_behind_do_not_mix() -> None:
    """PITFALL 32: many steps are planned and launched while the first one has not even begun."""
    heads = (32, 8)
    backend = backend_for(BF16, 64, heads)
    settings: dict[str, Any] = {"heads": heads, "head_dim": 64, "dtype": BF16, "is_for_graph": True}
    steps = [Step([1] * 4, [rng * 97 + n + 1 for n in range(4)], seed=rng, **settings) for rng in range(12)]
    outs = [step.out() for step in steps]
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for step, out in zip(steps, outs, strict=True):
        step.plan(backend)
        step.run(backend, out)
    for step, out in zip(steps, outs, strict=True):
        step.check(out)


def test_float32_is_refused() -> None:
    with pytest.raises(ConfigError, match="float32"):
        backend_for(torch.float32, 64, (32, 8))


# --- the engine -----------------------------------------------------------------------------------------

LIMITS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_reqs": 16,
    "max_num_batched_tokens": 64,
    "kv_tokens": 4096,
    "decode_sizes": (1, 4, 16),
    "token_sizes": (16, 64),
}
TAKEN = {
    "none": {"EAGER"},
    "piecewise": {"PIECEWISE"},
    "full": {"FULL", "PIECEWISE"},
    "full_decode_only": {"FULL", "EAGER"},
    "full_and_piecewise": {"FULL", "PIECEWISE"},
}
CLEAR = 0.5
"""Top two logits that are so far apart keep their order: four times the step of bfloat16 at 16."""
NUM_OUTPUTS = 12


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny model with heads of 64, four query heads a KV head, in bfloat16."""
    folder: Path = tmp_path_factory.mktemp("heads-of-64")
    with pytest.MonkeyPatch.context() as patch:
        changes = {"head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
        patch.setattr(tiny_models, "_BASE", {**tiny_models._BASE, **changes})
        tiny_models.write_tiny_model(folder)
    return load_model(EngineConfig(model=str(folder), device=DEVICE, dtype="bfloat16", attention="torch", **LIMITS))


@contextmanager
def engine(loaded: LoadedModel, **changes: Any) -> Iterator[Executor]:
    executor = Executor(dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, **changes)))
    try:
        Captures(executor).start()
        assert set(executor.graphed.plans) == set(executor.graphed.keys), "a key could not be captured"
        yield executor
    finally:
        executor.close()


def prompts() -> list[list[int]]:
    rng = random.Random(11)
    lengths = [1, 1, 2, 15, 16, 17, 63, 64, 65, 150, *(rng.randint(1, 60) for _ in range(14))]
    rng.shuffle(lengths)
    return [[rng.randrange(272) for _ in range(length)] for length in lengths]


def scheduler_for(executor: Executor, loaded: LoadedModel) -> Scheduler:
    return Scheduler(
        max_num_reqs=LIMITS["max_num_reqs"],
        max_num_batched_tokens=LIMITS["max_num_batched_tokens"],
        max_model_len=LIMITS["max_model_len"],
        allocator=PageAllocator(executor.num_pages, loaded.config.page_size),
    )


@pytest.mark.parametrize("mode", TAKEN)
def test_each_step_of_the_engine_agrees_with_torch_attention(loaded: LoadedModel, mode: str) -> None:
    """Both are fed torch's tokens, so that a near tie in one step does not change the next ones."""
    num_clear = num_rows = 0
    with ExitStack() as stack:
        ours = stack.enter_context(engine(loaded, mode=mode, attention="flashinfer"))
        theirs = stack.enter_context(engine(loaded, mode="none", attention="torch"))
        both = [(executor, scheduler_for(executor, loaded)) for executor in (ours, theirs)]
        for index, prompt in enumerate(prompts()[:16]):
            for _, scheduler in both:
                params = SamplingParams(max_tokens=NUM_OUTPUTS)
                scheduler.add(Request(request_id=str(index), prompt_token_ids=list(prompt), params=params))
        for _ in range(40):
            batches = [scheduler.schedule() for _, scheduler in both]
            if not batches[0].items:
                break
            found, expected = (
                executor.execute(batch).logits.float().clone()
                for (executor, _), batch in zip(both, batches, strict=True)
            )
            if expected.shape[0]:
                assert found.isfinite().all()
                apart = (found - expected).abs().max() / expected.abs().max()
                assert apart <= 2**-4, apart
                top = expected.topk(2, dim=-1)
                is_clear = top.values[:, 0] - top.values[:, 1] > CLEAR
                assert torch.equal(found.argmax(-1)[is_clear], top.indices[:, 0][is_clear])
                num_clear, num_rows = num_clear + int(is_clear.sum()), num_rows + len(is_clear)
            tokens = expected.argmax(-1).tolist()
            for (_, scheduler), batch in zip(both, batches, strict=True):
                names = [item.request.request_id for item in batch.items if item.samples]
                scheduler.complete(batch, dict(zip(names, tokens, strict=True)))
        assert set(ours.graphed.counters.snapshot()["by_runtime_mode"]) == TAKEN[mode], (
            "the steps did not run as the mode says"
        )
    assert num_rows >= 200 and num_clear > num_rows / 2


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_overlapped_steps_give_the_same_tokens(loaded: LoadedModel, mode: str) -> None:
    """A step is planned while the one before it runs. All requests come at once, so both runs batch alike."""
    answers = []
    with engine(loaded, mode=mode, attention="flashinfer") as executor:
        for overlap in (False, True, True):
            loop = EngineLoop(
                executor,
                scheduler_for(executor, loaded),
                tokenizer=None,
                eos_token_ids=(),
                max_model_len=LIMITS["max_model_len"],
                overlap=overlap,
            )
            params = SamplingParams(max_tokens=40)
            requests = [
                Request(request_id=str(index), prompt_token_ids=[7 * index + 3] * 4, params=params)
                for index in range(16)
            ]
            for request in requests:
                loop.add(request)
            while loop.has_work():
                loop.step()
            assert all(request.error is None and len(request.output_token_ids) == 40 for request in requests)
            answers.append([request.output_token_ids for request in requests])
    assert answers[0] == answers[1] == answers[2]
    assert len({tuple(tokens) for tokens in answers[0]}) > 8, "the prompts do not matter"
