"""A stand-in for `ostinato.LLM`: the same methods, answers at once, no model and no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pytest

import ostinato
from ostinato.cli.app import main
from ostinato.engine.config import EngineConfig
from ostinato.engine.request import FinishReason, SamplingParams
from ostinato.errors import OstinatoError, RequestError

TOO_LONG = "too long"


@dataclass
class FakeOutput:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.LENGTH
    error: OstinatoError | None = None


@dataclass
class FakeUpdate:
    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: OstinatoError | None = None


@dataclass
class FakeTokenizer:
    has_chat_template: bool


class FakeLLM:
    """Answers a prompt with its words, last first, one a step; token ids are the words' lengths."""

    opened: ClassVar[list[FakeLLM]] = []
    has_tokenizer: ClassVar[bool] = True
    has_chat_template: ClassVar[bool] = True
    start_error: ClassVar[OstinatoError | None] = None
    eager_differs: ClassVar[bool] = False

    def __init__(self, *, config: EngineConfig, progress: Any) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.config = dataclasses.replace(config, device="cpu")
        self.tokenizer = FakeTokenizer(self.has_chat_template) if self.has_tokenizer else None
        self.calls: list[tuple[str, Any, Any]] = []
        self.log: list[tuple[str, int]] = []
        self.is_closed = False
        self._running: dict[str, tuple[list[str], int]] = {}
        self._steps = 0
        FakeLLM.opened.append(self)
        progress.start("load weights", 3, "tensors")
        progress.advance(3)
        progress.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.is_closed = True

    def generate(self, prompts: Sequence[Any], params: SamplingParams) -> list[FakeOutput]:
        self.calls.append(("generate", list(prompts), params))
        return [self._output(prompt) for prompt in prompts]

    def chat(self, conversations: Sequence[Any], params: SamplingParams) -> list[FakeOutput]:
        self.calls.append(("chat", list(conversations), params))
        return [self._output(messages[-1]["content"]) for messages in conversations]

    def add_request(self, prompt: str, params: SamplingParams) -> str:
        request_id = f"r{len(self.log)}"
        self.log.append((prompt, self._steps))
        self._running[request_id] = (self._words(prompt), params.max_tokens)
        return request_id

    def add_chat(self, messages: Any, params: SamplingParams) -> str:
        return self.add_request(messages[-1]["content"], params)

    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> list[FakeUpdate]:
        self._steps += 1
        updates = []
        for request_id, (words, left) in list(self._running.items()):
            word, rest, left = words[0], words[1:], left - 1
            ends = not rest or left == 0
            reason = (FinishReason.LENGTH if rest else FinishReason.STOP) if ends else None
            updates.append(FakeUpdate(request_id, word + " ", [len(word)], reason))
            if ends:
                del self._running[request_id]
            else:
                self._running[request_id] = (rest, left)
        return updates

    def stats(self) -> dict[str, Any]:
        rows = [
            {
                "runtime_mode": "FULL",
                "bucket": "4",
                "reason": "PADDED",
                "hits": 3,
                "live_tokens": 9,
                "padded_tokens": 3,
                "launch_seconds": 0.003,
                "step_seconds": 0.006,
            },
            {"runtime_mode": "EAGER", "bucket": "-", "reason": "OVER_LARGEST", "hits": 1, "live_tokens": 88}
            | {"padded_tokens": 0, "launch_seconds": 0.25, "step_seconds": 0.5},
        ]
        return {
            "dispatch": {
                "steps": 4,
                "by_runtime_mode": {"FULL": 3, "EAGER": 1},
                "by_reason": {"PADDED": 3, "OVER_LARGEST": 1},
                "live_tokens": 97,
                "padded_tokens": 3,
                "buckets": rows,
            },
            "graphs": {"count": 2, "segments": 33, "pool_bytes": 3 << 20, "capture_seconds": 1.25},
            "config": {**dataclasses.asdict(self.config), "reasons": {"device": "cpu: found"}},
            "something later": {},
        }

    def _words(self, prompt: str) -> list[str]:
        words = prompt.split()[::-1]
        return [*words[:-1], "differs"] if self.eager_differs and self.config.mode == "none" else words

    def _output(self, prompt: str | Sequence[int]) -> FakeOutput:
        if not isinstance(prompt, str):
            return FakeOutput(token_ids=list(prompt))
        if prompt == TOO_LONG:
            return FakeOutput(finish_reason=FinishReason.ERROR, error=RequestError("the prompt is too long", got=9999))
        words = self._words(prompt)
        return FakeOutput(text=" ".join(words), token_ids=[len(word) for word in words])


@pytest.fixture
def fake_llm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """`ostinato.LLM` is `FakeLLM` for this test; `FakeLLM.opened` lists the engines that were made."""
    monkeypatch.setitem(vars(ostinato), "LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "opened", [])
    return FakeLLM


@pytest.fixture
def ostinato_command() -> Callable[..., int]:
    """Runs ``ostinato ARGS`` in this process and returns its exit code."""

    def run(*args: str) -> int:
        with pytest.raises(SystemExit) as stopped:
            main(args)
        code = stopped.value.code
        return code if isinstance(code, int) else 0

    return run
