"""`on_moved="recapture"` of an engine on a GPU: a weight is replaced while requests run, with a step in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ostinato import LLM, SamplingParams
from ostinato.engine.execution import BackgroundCapture
from ostinato.errors import StepFailedError
from ostinato.telemetry import GraphCaptured, MemorySink, StepFinished, TensorMoved
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 2048,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
PROMPTS = [[5, 6, 7], [9] * 40, [3]]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def replace_weight(llm: LLM) -> None:
    down = llm._require_open().model.layers[0].mlp.down
    down.weight = nn.Parameter(-3 * down.weight.data, requires_grad=False)


def drive(llm: LLM, *, moves_at: int | None) -> tuple[list[list[int]], list[Any]]:
    """Tokens and errors of each prompt; the weight is replaced between two steps."""
    names = [llm.add_request(prompt, PARAMS) for prompt in PROMPTS]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    errors = []
    step = 0
    while llm.has_work():
        if step == moves_at:
            replace_weight(llm)
        step += 1
        for update in llm.step():
            tokens[update.request_id] += update.token_ids
            errors += [] if update.error is None else [update.error]
    return list(tokens.values()), errors


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("mode", ["full_and_piecewise", "piecewise"])
def test_answers_are_those_of_eager_and_graphs_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, overlap: bool
) -> None:
    monkeypatch.setattr(BackgroundCapture, "is_due", lambda self, **_: bool(self.num_pending))
    folder, sink = str(write_tiny_model(tmp_path)), MemorySink()
    with LLM(folder, **SETTINGS, mode="none", overlap=overlap) as llm:
        expected, _ = drive(llm, moves_at=8)
    with LLM(folder, **SETTINGS, mode="none", overlap=overlap) as llm:
        assert drive(llm, moves_at=None)[0] != expected, "an old graph would be noticed"
    with LLM(folder, **SETTINGS, mode=mode, overlap=overlap, on_moved="recapture", sinks=[sink]) as llm:
        keys = set(llm._require_open().graphed.plans)
        sink.events.clear()
        answers, errors = drive(llm, moves_at=8)
        assert answers == expected and not errors
        moved = {event.key for event in sink.events if isinstance(event, TensorMoved)}
        captured = {event.key for event in sink.events if isinstance(event, GraphCaptured)}
        assert moved and moved == captured and set(llm._require_open().graphed.plans) == keys
        finished = [event for event in sink.events if isinstance(event, StepFinished) and event.reason == "MOVED"]
        assert finished and {event.runtime_mode for event in finished} == {"EAGER"}


def test_raising_is_the_typed_error(tmp_path: Path) -> None:
    with LLM(str(write_tiny_model(tmp_path)), **SETTINGS) as llm:
        _, errors = drive(llm, moves_at=8)
        assert errors and all(isinstance(error, StepFailedError) for error in errors)
        assert "down.weight" in errors[0].message
