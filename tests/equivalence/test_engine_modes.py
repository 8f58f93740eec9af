"""Every mode gives the tokens of an eager run of each prompt alone, under the traffic that serving sees.

Prompts of one token to several chunks, arrivals between steps, a cache so small that requests are preempted,
contexts on both sides of a KV tier; and the steps must have run as the mode says, or the test proves nothing.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.layers.linear_tiles import MAX_ROWS
from ostinato.engine.models import DecoderModel
from ostinato.engine.request import FinishReason, SamplingParams
from ostinato.telemetry import Event, RequestPreempted
from ostinato.testing.tiny_models import TINY_FAMILIES, write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "max_model_len": 300,
    "max_num_reqs": 8,
    "max_num_batched_tokens": 32,
    "decode_sizes": (1, 3, 8),
    "token_sizes": (4, 16, 32),
}
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)

# mode -> {runtime mode: the reasons that its steps may have}
GRAPHS = {"EXACT", "PADDED"}
EXPECTED: dict[str, dict[str, set[str]]] = {
    "none": {"EAGER": {"DISABLED"}},
    "piecewise": {"PIECEWISE": GRAPHS},
    "full_decode_only": {"FULL": GRAPHS, "EAGER": {"NOT_UNIFORM"}},
    "full_and_piecewise": {"FULL": GRAPHS, "PIECEWISE": GRAPHS},
    "full": {"FULL": GRAPHS, "PIECEWISE": GRAPHS},  # torch attention allows no graph of a mixed batch
    "auto": {"FULL": GRAPHS, "PIECEWISE": GRAPHS},
}


def prompts() -> list[list[int]]:
    """32 prompts: one token, around pages and chunks, and two that pass the 256 tokens of the lower tier."""
    rng = random.Random(7)
    lengths = [1, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 40, 64, 65, 250, 262]
    lengths += [rng.randint(10, 40) for _ in range(32 - len(lengths))]
    rng.shuffle(lengths)
    return [[rng.randrange(272) for _ in range(length)] for length in lengths]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def make(family: str) -> Path:
        return write_tiny_model(tmp_path_factory.mktemp(family), family)

    return make


@pytest.fixture(scope="module")
def alone(tiny_dir: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """Tokens of each prompt, run eagerly by itself and in one piece."""

    @functools.cache
    def run(family: str) -> list[list[int]]:
        settings = {**SETTINGS, "mode": "none", "max_num_batched_tokens": 300, "decode_sizes": None}
        with LLM(str(tiny_dir(family)), kv_tokens=400, **settings) as llm:
            found = [llm.generate([prompt], PARAMS)[0].token_ids for prompt in prompts()]
        assert all(len(tokens) == 24 for tokens in found)
        assert len({tuple(tokens) for tokens in found}) == len(found), "the prompts do not matter to this model"
        return found

    return run


class Preemptions:
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def emit(self, event: Event) -> None:
        self.count += isinstance(event, RequestPreempted)


def serve(llm: LLM) -> list[list[int]]:
    """Tokens of each prompt; three arrive at once, then one or two after every other step."""
    rng = random.Random(1)
    waiting = prompts()
    names: list[str] = []
    tokens: dict[str, list[int]] = {}
    reasons: dict[str, FinishReason] = {}
    step = 0
    while waiting or llm.has_work():
        for _ in range(3 if step == 0 else rng.choice((0, 1, 2, 3))):
            if waiting:
                names.append(llm.add_request(waiting.pop(0), PARAMS))
                tokens[names[-1]] = []
        for update in llm.step():
            tokens[update.request_id].extend(update.token_ids)
            assert update.error is None
            if update.finish_reason is not None:
                reasons[update.request_id] = update.finish_reason
        step += 1
    assert reasons == dict.fromkeys(names, FinishReason.LENGTH)
    return [tokens[name] for name in names]


@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_tokens_are_those_of_eager(
    tiny_dir: Callable[[str], Path],
    alone: Callable[[str], list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    mode: str,
) -> None:
    expected = alone(family)
    preemptions = Preemptions()
    with LLM(str(tiny_dir(family)), mode=mode, kv_tokens=288, sinks=[preemptions], **SETTINGS) as llm:
        assert llm.stats()["dispatch"]["steps"] == 0
        forwards = 0
        forward = DecoderModel.forward

        def counted(self: DecoderModel, *args: torch.Tensor) -> torch.Tensor:
            nonlocal forwards
            forwards += 1
            return forward(self, *args)

        monkeypatch.setattr(DecoderModel, "forward", counted)
        assert serve(llm) == expected
        dispatch = llm.stats()["dispatch"]

    assert preemptions.count > 0
    taken: dict[str, set[str]] = {}
    for row in dispatch["buckets"]:
        taken.setdefault(row["runtime_mode"], set()).add(row["reason"])
    assert taken == EXPECTED[mode]
    # Not only by the books: replays never enter the model's Python code.
    assert forwards == dispatch["by_runtime_mode"].get("EAGER", 0)
    if "FULL" in taken:
        buckets = {row["bucket"] for row in dispatch["buckets"] if row["runtime_mode"] == "FULL"}
        assert buckets >= {"1/256", "3/256", "8/256", "1/300"}
    if "PIECEWISE" in taken:
        buckets = {row["bucket"] for row in dispatch["buckets"] if row["runtime_mode"] == "PIECEWISE"}
        assert buckets >= {"16", "32"}


def test_one_trace_serves_sizes_on_both_sides_of_the_linear_kernels(
    tiny_dir: Callable[[str], Path], alone: Callable[[str], list[list[int]]]
) -> None:
    """A compiler traces the model at one size: what that size chooses there may not be held against the others."""
    settings = {**SETTINGS, "max_num_batched_tokens": 300, "token_sizes": (16, MAX_ROWS, 300)}
    with LLM(str(tiny_dir("llama")), mode="piecewise", partition="fx", kv_tokens=2048, **settings) as llm:
        assert serve(llm) == alone("llama")
        buckets = {row["bucket"] for row in llm.stats()["dispatch"]["buckets"]}
        assert buckets == {"16", str(MAX_ROWS), "300"}


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_overlapped_steps_give_the_same_tokens(
    tiny_dir: Callable[[str], Path], alone: Callable[[str], list[list[int]]], mode: str
) -> None:
    """Launching a step before the tokens of the one before are read changes nothing, under preemption too."""
    preemptions = Preemptions()
    with LLM(str(tiny_dir("llama")), mode=mode, kv_tokens=288, overlap=True, sinks=[preemptions], **SETTINGS) as llm:
        assert serve(llm) == alone("llama")
    assert preemptions.count > 0


def test_shaped_batches_give_the_same_tokens(
    tiny_dir: Callable[[str], Path], alone: Callable[[str], list[list[int]]]
) -> None:
    with LLM(str(tiny_dir("llama")), mode="auto", kv_tokens=2048, shape_batches=True, **SETTINGS) as llm:
        assert serve(llm) == alone("llama")
        shaper = llm._loop._scheduler._shaper
        assert shaper is not None
        num_waits = shaper.num_waits
        short = [(p, t) for p, t in zip(prompts(), alone("llama"), strict=True) if len(p) < 8][:4]
        tokens: dict[str, list[int]] = {}
        while len(tokens) < len(short) or llm.has_work():
            if len(tokens) < 3 or len(next(iter(tokens.values()))) == 5:  # three, and once they run the fourth
                tokens[llm.add_request(short[len(tokens)][0], PARAMS)] = []
            for update in llm.step() if len(tokens) >= 3 else ():
                tokens[update.request_id].extend(update.token_ids)
        assert list(tokens.values()) == [expected for _, expected in short]
        assert shaper.num_waits == num_waits + 1


SAMPLED = [
    SamplingParams(max_tokens=20, temperature=1.5, seed=3, ignore_eos=True),
    SamplingParams(max_tokens=9, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.3, logprobs=3),
    SamplingParams(max_tokens=30, temperature=0.8, top_k=5, top_p=0.9, seed=4, frequency_penalty=1.0),
    SamplingParams(max_tokens=30, temperature=2.0, seed=5, stop_token_ids=tuple(range(0, 272, 9))),
    SamplingParams(max_tokens=30, stop=("e",), temperature=1.0, seed=6),
    SamplingParams(max_tokens=3),
]


def test_overlap_changes_no_sampled_token(tiny_dir: Callable[[str], Path]) -> None:
    """Seeds, penalties, stop rules and log-probabilities see the token that is still on the device."""
    found = []
    for overlap in (False, True):
        with LLM(str(tiny_dir("llama")), mode="auto", kv_tokens=2048, overlap=overlap, **SETTINGS) as llm:
            outputs = llm.generate(prompts()[: 2 * len(SAMPLED)], SAMPLED * 2)
        found.append(outputs)
    for one, other in zip(*found, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        for a, b in zip(one.logprobs, other.logprobs, strict=True):  # batches differ, so sums may be rounded otherwise
            assert (a.token_id, a.rank) == (b.token_id, b.rank)
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
    assert {output.finish_reason for output in found[0]} == {FinishReason.LENGTH, FinishReason.STOP}


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_one_call_for_all(tiny_dir: Callable[[str], Path], alone: Callable[[str], list[list[int]]], mode: str) -> None:
    with LLM(str(tiny_dir("llama")), mode=mode, kv_tokens=2048, **SETTINGS) as llm:
        assert [output.token_ids for output in llm.generate(prompts(), PARAMS)] == alone("llama")


def test_another_model_gives_other_tokens(tmp_path: Path, alone: Callable[[str], list[list[int]]]) -> None:
    """The comparison can fail: the same prompts with weights of another seed."""
    with LLM(str(write_tiny_model(tmp_path, seed=1)), mode="auto", kv_tokens=2048, **SETTINGS) as llm:
        found = [output.token_ids for output in llm.generate(prompts(), PARAMS)]
    assert sum(a == b for a, b in zip(found, alone("llama"), strict=True)) == 0
