"""Every mode chooses the tokens of an eager run of each request alone, whatever the requests ask for.

Greedy, temperature, top-k, top-p, min-p, each penalty and all at once, with seeds, in one batch: under prompts in
chunks, preemption, overlapped steps, rows that pass from one request to the next, interrupts, and neighbours with
logits processors. Full steps must have been full ones, or the test proves nothing.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.execution.executor import StepOutput
from ostinato.engine.request import FinishReason, SamplingParams
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.errors import EngineError
from ostinato.runtime import Decision, Reason, RuntimeMode
from ostinato.telemetry import Event, RequestPreempted
from ostinato.testing.sampling import choose_for
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "page_size": 4,
    "max_model_len": 128,
    "max_num_reqs": 6,
    "max_num_batched_tokens": 24,
    "decode_sizes": (1, 3, 6),
    "token_sizes": (8, 24),
}
SMALL_CACHE = 112  # tokens: too few for six requests at a time
MODES = {
    "none": {"EAGER": {"DISABLED"}},
    "piecewise": {"PIECEWISE": {"EXACT", "PADDED"}},
    "full_decode_only": {"FULL": {"EXACT", "PADDED"}, "EAGER": {"NOT_UNIFORM"}},
    "full_and_piecewise": {"FULL": {"EXACT", "PADDED"}, "PIECEWISE": {"EXACT", "PADDED"}},
}
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.1},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 0.7},
    {
        "temperature": 0.9,
        "top_k": 30,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
    },
    {"temperature": 2.0, "presence_penalty": -0.5, "logprobs": 2},
    {"temperature": 2.0, "frequency_penalty": 0.5, "stop_token_ids": tuple(range(0, 272, 9))},
]


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Two of each kind, prompts of one token to several chunks, in an order that mixes the kinds."""
    rng = random.Random(5)
    found = []
    for index, kind in enumerate(KINDS * 2):
        prompt = [rng.randrange(272) for _ in range(rng.choice((1, 2, 5, 9, 20, 33, 60)))]
        params = SamplingParams(max_tokens=rng.randint(8, 24), seed=index, ignore_eos=True, **kind)
        found.append((prompt, params))
    rng.shuffle(found)
    return found


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def alone(folder: str) -> list[list[int]]:
    """Tokens of each request, run eagerly by itself and in one piece."""
    settings = {**SETTINGS, "mode": "none", "max_num_batched_tokens": 128, "token_sizes": None, "decode_sizes": None}
    with LLM(folder, kv_tokens=256, **settings) as llm:
        found = [llm.generate([prompt], params)[0].token_ids for prompt, params in requests()]
    assert len({tuple(tokens) for tokens in found}) == len(found)
    return found


class Preemptions:
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def emit(self, event: Event) -> None:
        self.count += isinstance(event, RequestPreempted)


def serve(llm: LLM, asked: Sequence[tuple[list[int], SamplingParams]], step: Callable[[], Any] | None = None) -> Any:
    """Tokens of each request; three arrive at once, then some after every other step."""
    rng = random.Random(1)
    waiting, names = list(asked), []
    tokens: dict[str, list[int]] = {}
    while waiting or llm.has_work():
        for _ in range(3 if not names else rng.choice((0, 1, 2))):
            if waiting:
                names.append(llm.add_request(*waiting.pop(0)))
                tokens[names[-1]] = []
        for update in (step or llm.step)():
            assert update.error is None
            tokens[update.request_id] += update.token_ids
    return [tokens[name] for name in names]


def taken(llm: LLM) -> dict[str, set[str]]:
    """Runtime modes of the steps, and their reasons."""
    found: dict[str, set[str]] = {}
    for row in llm.stats()["dispatch"]["buckets"]:
        found.setdefault(row["runtime_mode"], set()).add(row["reason"])
    return found


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_eager_alone(folder: str, alone: list[list[int]], mode: str, overlap: bool) -> None:
    preemptions = Preemptions()
    with LLM(folder, mode=mode, overlap=overlap, kv_tokens=SMALL_CACHE, sinks=[preemptions], **SETTINGS) as llm:
        assert serve(llm, requests()) == alone
        assert taken(llm) == MODES[mode]
        full = llm.stats()["dispatch"]["by_runtime_mode"].get("FULL", 0)
    assert preemptions.count > 0
    assert full > 20 or not mode.startswith("full")


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_each_step_chooses_what_its_requests_tokens_say(
    folder: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Counts that the device has kept are those of the tokens that the host has read."""
    with LLM(folder, mode=mode, kv_tokens=SMALL_CACHE, **SETTINGS) as llm:
        executor, num_compared = llm._require_open(), 0
        execute = executor.execute

        def compared(batch: ScheduledBatch) -> StepOutput:
            nonlocal num_compared
            expected_for = [dataclasses.replace(r, output_token_ids=list(r.output_token_ids)) for r in batch.sampling]
            output = execute(batch)
            if batch.sampling:
                expected = choose_for(output.logits.clone(), expected_for)
                assert output.token_ids.tolist() == expected.token_ids.tolist()
                num_compared += 1
            return output

        monkeypatch.setattr(executor, "execute", compared)
        serve(llm, requests())
    assert num_compared > 50


def test_another_seed_gives_other_tokens(folder: str, alone: list[list[int]]) -> None:
    """The comparison can fail."""
    with LLM(folder, mode="full_and_piecewise", kv_tokens=512, **SETTINGS) as llm:
        for index, (prompt, params) in enumerate(requests()):
            if params.temperature >= 1:
                (other,) = llm.generate([prompt], SamplingParams(temperature=2.0, max_tokens=8, seed=100))
                assert other.token_ids != alone[index][:8]


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_interrupted_steps_change_no_token(
    folder: str, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """An interrupt in the middle of a launch: the step comes again, its tokens may have been counted or not."""
    with LLM(folder, mode="full_and_piecewise", overlap=overlap, kv_tokens=SMALL_CACHE, **SETTINGS) as llm:
        executor = llm._require_open()
        run, num_runs, num_interrupts = executor.graphed.run, 0, 0

        def interrupted(decision: Any, **more: Any) -> Any:
            nonlocal num_runs
            num_runs += 1
            if num_runs % 5 == 0:
                raise KeyboardInterrupt
            outputs = run(decision, **more)
            if num_runs % 5 == 2:
                raise KeyboardInterrupt
            return outputs

        def step() -> Any:
            nonlocal num_interrupts
            while True:
                try:
                    return llm.step()
                except KeyboardInterrupt:
                    num_interrupts += 1

        monkeypatch.setattr(executor.graphed, "run", interrupted)
        assert serve(llm, requests(), step) == alone
    assert num_interrupts > 20


@pytest.mark.parametrize(("mode", "others"), [("full_and_piecewise", "PIECEWISE"), ("full_decode_only", "EAGER")])
def test_steps_with_logits_processors_are_not_full_and_say_why(
    folder: str, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch, mode: str, others: str
) -> None:
    """Their requests get what they decide, or an error of their own; neighbours get what they get alone."""

    def only_even(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[1::2] = -torch.inf
        return logits

    def fails(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(token_ids) >= 6:
            raise ValueError("planted")
        return logits

    chosen = [(index, each) for index, each in enumerate(requests()) if len(each[0]) < 20][:4]
    decisions: list[Decision] = []
    with LLM(folder, mode=mode, overlap=True, kv_tokens=512, **SETTINGS) as llm:
        graphed = llm._require_open().graphed
        run = graphed.run

        def noted(decision: Decision, **more: Any) -> Any:
            decisions.append(decision)
            return run(decision, **more)

        monkeypatch.setattr(graphed, "run", noted)
        params = SamplingParams(max_tokens=6, temperature=1.5, seed=1, ignore_eos=True)
        even = llm.add_request([3, 5, 7], params, logits_processors=[only_even])
        bad = llm.add_request([3, 5, 7], params, logits_processors=[fails])
        names = [llm.add_request(prompt, each) for _, (prompt, each) in chosen]
        updates: dict[str, list[Any]] = {name: [] for name in (even, bad, *names)}
        while llm.has_work():
            for update in llm.step():
                updates[update.request_id].append(update)
    vetoed = [decision for decision in decisions if decision.live.veto]
    assert len(vetoed) == 6 and others in {decision.runtime_mode.value for decision in vetoed}
    for decision in vetoed:
        assert decision.runtime_mode is not RuntimeMode.FULL
        refused = next(each for each in decision.alternatives if each.reason is Reason.VETOED)
        assert (refused.candidate, refused.detail) == ("full decode graph", "logits processors run on the host")
    assert RuntimeMode.FULL in {decision.runtime_mode for decision in decisions if not decision.live.veto}
    tokens = {name: [t for update in found for t in update.token_ids] for name, found in updates.items()}
    assert len(tokens[even]) == 6 and not any(token % 2 for token in tokens[even])
    assert len(tokens[bad]) == 3 and updates[bad][-1].finish_reason is FinishReason.ERROR
    assert isinstance(updates[bad][-1].error, EngineError) and "planted" in str(updates[bad][-1].error)
    assert [tokens[name] for name in names] == [alone[index] for index, _ in chosen]


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_unseeded_requests_repeat_with_the_engines_seed(folder: str, mode: str) -> None:
    asked = [([9 + i, 4], SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)) for i in range(4)]
    found = []
    for seed in (0, 0, 1):
        with LLM(folder, mode=mode, kv_tokens=512, seed=seed, **SETTINGS) as llm:
            found.append([serve(llm, asked) for _ in range(2)])
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1], "the engine's stream moves on"


def test_a_request_gets_the_same_after_others_have_used_its_rows(folder: str) -> None:
    """Counts of the request before must not stand in a row."""
    params = SamplingParams(max_tokens=12, presence_penalty=2.0, frequency_penalty=2.0, ignore_eos=True)
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [[i + 1] * 5 for i in range(8)]
    settings = {**SETTINGS, "max_num_reqs": 2, "decode_sizes": (2,)}
    with LLM(folder, mode="full_decode_only", kv_tokens=512, **settings) as llm:
        first = [llm.generate([prompt], params)[0].token_ids for prompt in prompts]
        without = [llm.generate([prompt], plain)[0].token_ids for prompt in prompts]
        again = [llm.generate([prompt], params)[0].token_ids for prompt in reversed(prompts)]
    assert again == first[::-1]
    assert sum(a != b for a, b in zip(first, without, strict=True)) > 4, "the penalties do nothing"
