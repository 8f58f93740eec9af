"""An engine on another device than the first, and from a thread whose current device is the first."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.request import SamplingParams
from ostinato.errors import DeviceUnavailableError
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 1024,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
PROMPTS: list[Any] = [[5], [7, 8, 9, 250], [3] * 40]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def test_another_device_than_the_current_one_is_refused(tmp_path: Path) -> None:
    folder = str(write_tiny_model(tmp_path))
    with torch.cuda.device(0), pytest.raises(DeviceUnavailableError, match="the current device is cuda:0"):
        LLM(folder, device="cuda:1", **SETTINGS)


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_threads_of_another_current_device_answer_alike(tmp_path: Path, mode: str) -> None:
    folder = str(write_tiny_model(tmp_path))
    with torch.cuda.device(0), LLM(folder, device="cuda:0", mode=mode, **SETTINGS) as llm:
        expected = answers(llm)
    with torch.cuda.device(1), LLM(folder, device="cuda:1", mode=mode, **SETTINGS) as llm:
        assert answers(llm) == expected
        found: list[Any] = []

        def work() -> None:
            found.append(torch.cuda.current_device())
            found.append(answers(llm))
            found.append(torch.cuda.current_device())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [0, expected, 0]
