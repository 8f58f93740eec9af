"""The op that chooses tokens on the device: against its CPU kernel, statistically, and captured in a graph."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.layers import SamplingHead
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling import RowToBuild, Setting, allocate_counts, build_rows, choose_tokens
from ostinato.engine.sampling.settings import settings_of
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="no triton: the torch form is tested on the CPU"),
]
DEVICE = torch.device("cuda")
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1e-7},
    {"temperature": 1e30},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.0, "top_k": 50},
    {"temperature": 1.0, "top_k": 2**31},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.8, "min_p": 0.01},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5, "frequency_penalty": 0.4},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "repetition_penalty": 0.8, "frequency_penalty": -0.2},
]


class Rows:
    """Inputs of one call, on the CPU; `on` brings them over."""

    def __init__(self, kinds: list[dict[str, Any]], vocab: int, dtype: torch.dtype, *, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        params = [SamplingParams(**kind) for kind in kinds]
        self.logits = (torch.randn(len(kinds), vocab, generator=random) * 3).to(dtype)
        self.settings = torch.tensor([settings_of(each) for each in params], dtype=torch.float64)
        self.settings[:, Setting.UNIFORM] = torch.rand(len(kinds), dtype=torch.float64, generator=random)
        self.owners = torch.tensor([i + 1 if each.has_penalties else 0 for i, each in enumerate(params)])
        self.counts = torch.randint(0, 5, (len(kinds) + 1, vocab), generator=random, dtype=torch.int16)
        self.counts *= torch.rand(self.counts.shape, generator=random) < 0.1

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """Copies, and room for the tokens."""
        found = [t.to(device, copy=True) for t in (self.logits, self.settings, self.owners, self.counts)]
        return [*found, torch.full((len(self.logits),), 77, device=device)]


def run(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens and counts of the CPU kernel, then of the device's."""
    here, there = rows.on(torch.device("cpu")), rows.on(DEVICE)
    choose_tokens(*here)
    SamplingHead(max_rows=len(rows.logits), device=DEVICE)(*there)
    return here[4], here[3], there[4].cpu(), there[3].cpu()


def is_on_a_border(rows: Rows, row: int) -> bool:
    """Whether a slightly larger or smaller random number, or limit, gives other tokens: exp may then decide."""
    found = set()
    for shift in (-1e-5, 0.0, 1e-5):
        for column in (Setting.UNIFORM, Setting.TOP_P, Setting.MIN_SCORE):
            logits, settings, owners, counts, out = rows.on(torch.device("cpu"))
            settings[row, column] = settings[row, column] * (1 + shift)
            choose_tokens(logits[row : row + 1], settings[row : row + 1], owners[row : row + 1], counts, out[:1])
            found.add(int(out[0]))
    return len(found) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [7, 1025, 49152, 151_936])
def test_tokens_are_those_of_the_cpu_kernel(vocab: int, dtype: torch.dtype) -> None:
    num_compared = 0
    for seed in range(3):
        rows = Rows(KINDS, vocab, dtype, seed=seed)
        expected, expected_counts, got, got_counts = run(rows)
        for row in range(len(KINDS)):
            if got[row] != expected[row]:
                assert is_on_a_border(rows, row), f"{KINDS[row]}: {got[row]} for {expected[row]}"
                continue
            num_compared += 1
            owner = int(rows.owners[row])
            assert owner == 0 or torch.equal(got_counts[owner], expected_counts[owner])
        assert torch.equal(got_counts[0], rows.counts[0])
    assert num_compared >= 3 * len(KINDS) - 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_harms_no_other(bad: float) -> None:
    rows = Rows(KINDS, 49152, torch.bfloat16, seed=5)
    _, _, healthy, _ = run(rows)
    rows.logits[::2] = bad if bad == -math.inf else rows.logits[::2]
    if bad != -math.inf:
        rows.logits[::2, 30_000] = bad
    _, _, got, counts = run(rows)
    assert got[::2].tolist() == [-1] * len(got[::2]) and got[1::2].tolist() == healthy[1::2].tolist()
    assert torch.equal(counts[1::2], rows.counts[1::2]), "a row without a token counts none"


def test_a_row_gives_the_same_token_in_any_batch() -> None:
    rows = Rows([KINDS[i % len(KINDS)] for i in range(256)], 49152, torch.bfloat16, seed=1)
    *_, together, _ = run(rows)
    logits, settings, owners, counts, out = rows.on(DEVICE)
    head = SamplingHead(max_rows=256, device=DEVICE)
    for row in range(0, 256, 17):
        one = slice(row, row + 1)
        head(logits[one], settings[one], owners[one], counts, out[one])
        assert out[row] == together[row]


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[5], KINDS[7], KINDS[11]], ids=str)
def test_draws_follow_the_distribution(kind: dict[str, Any]) -> None:
    """Evenly spaced numbers: each token's share is exact to one draw."""
    num_draws, vocab = 4096, 300
    rows = Rows([kind], vocab, torch.float32, seed=2)
    params = SamplingParams(**kind)
    logits = rows.logits.to(DEVICE).expand(num_draws, -1).contiguous()
    settings = rows.settings.to(DEVICE).repeat(num_draws, 1)
    settings[:, Setting.UNIFORM] = (torch.arange(num_draws, device=DEVICE, dtype=torch.float64) + 0.5) / num_draws
    out = torch.empty(num_draws, dtype=torch.int64, device=DEVICE)
    counts = allocate_counts(0, vocab, DEVICE)
    head = SamplingHead(max_rows=num_draws, device=DEVICE)
    head(logits, settings, torch.zeros(num_draws, dtype=torch.int64, device=DEVICE), counts, out)
    scores = rows.logits[0].double() / params.temperature
    weights = (scores - scores.max()).exp()
    order = weights.argsort(descending=True)[: params.top_k or vocab]
    shares = weights[order] / weights[order].sum()
    kept = order[: int((shares.cumsum(0) < params.top_p).sum()) + 1]
    kept = kept[weights[kept] >= params.min_p]
    expected = torch.zeros(vocab, dtype=torch.float64)
    expected[kept] = weights[kept] / weights[kept].sum()
    got = out.cpu().bincount(minlength=vocab).double() / num_draws
    assert (got - expected).abs().max() <= 1.01 / num_draws
    assert (got[expected == 0] == 0).all()


def test_a_captured_call_follows_what_its_inputs_say() -> None:
    rows = Rows(KINDS, 49152, torch.bfloat16, seed=0)
    inputs = rows.on(DEVICE)
    head = SamplingHead(max_rows=len(KINDS), device=DEVICE)
    with torch.no_grad():
        head(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            head(*inputs)
    for seed in range(1, 5):
        kinds = KINDS[seed:] + KINDS[:seed]  # other settings, other rows with penalties
        fresh = Rows(kinds, 49152, torch.bfloat16, seed=seed)
        eager = fresh.on(DEVICE)
        head(*eager)
        for static, value in zip(inputs[:4], fresh.on(DEVICE)[:4], strict=True):
            static.copy_(value)
        allocated = torch.cuda.memory_allocated()
        graph.replay()
        assert torch.cuda.memory_allocated() == allocated
        assert torch.equal(inputs[4], eager[4]) and torch.equal(inputs[3], eager[3])


def test_rows_of_counts_are_built_on_the_device() -> None:
    requests = [
        Request(request_id=str(i), prompt_token_ids=[1, 2, i], output_token_ids=[5] * i, num_pending_tokens=i % 2)
        for i in range(3)
    ]
    rows = [RowToBuild(3 - i, r, (1 + i) * r.num_pending_tokens) for i, r in enumerate(requests)]
    found = []
    for device in (torch.device("cpu"), DEVICE):
        counts = allocate_counts(3, 50, device).fill_(9)
        build_rows(counts, rows, torch.tensor([0, 7, 8, 9], device=device))
        found.append(counts.cpu())
    assert torch.equal(*found)
    assert found[1][2, 8] == 2, "the pending token of the second"


SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_reqs": 6,
    "max_num_batched_tokens": 32,
    "kv_tokens": 2048,
    "decode_sizes": (1, 3, 6),
    "token_sizes": (16, 32),
}


def test_an_engine_gives_the_same_tokens_in_every_mode(tmp_path: Path) -> None:
    """And decodes in full graphs whatever is asked for."""
    folder = str(write_tiny_model(tmp_path))
    asked = [SamplingParams(max_tokens=20, seed=i, ignore_eos=True, **kind) for i, kind in enumerate(KINDS)]
    prompts = [[3 + i] * (1 + 5 * i % 40) for i in range(len(asked))]
    found = {}
    for mode in ("none", "piecewise", "full_and_piecewise"):
        for overlap in (False, True):
            with LLM(folder, mode=mode, overlap=overlap, **SETTINGS) as llm:
                found[mode, overlap] = [output.token_ids for output in llm.generate(prompts, asked)]
                by_mode = llm.stats()["dispatch"]["by_runtime_mode"]
            assert ("FULL" in by_mode) is (mode == "full_and_piecewise")
    first = found["none", False]
    assert all(tokens == first for tokens in found.values())
