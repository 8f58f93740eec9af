"""A start on a GPU: weights on their way while a made-up step loads kernels, and what a head start leaves behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM, SamplingParams
from ostinato.engine import llm as llm_module
from ostinato.engine.execution import engine_graphs, load_model
from ostinato.engine.weights import parallel_copy
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "bfloat16",
    "max_model_len": 256,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 64,
    "kv_tokens": 1024,
    "decode_sizes": (1, 4),
    "token_sizes": (16, 64),
}
PROMPTS = [list(range(16)), [5], [3] * 20, list(range(60))]
FIRST = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=2)


def first_answers(llm: LLM, num_prompts: int) -> list[Any]:
    """One after the other, each by an eager step."""
    answers = [llm.generate([prompt], FIRST)[0] for prompt in PROMPTS[:num_prompts]]
    assert all(answer.error is None for answer in answers)
    return [(answer.token_ids, answer.logprobs) for answer in answers]


@pytest.mark.parametrize(
    ("start", "num_prompts"),
    [({"capture": "background"}, 1), ({"mode": "none"}, len(PROMPTS))],  # behind the first there may be graphs
    ids=["background", "none"],
)
def test_answers_are_those_of_an_engine_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: dict[str, Any], num_prompts: int
) -> None:
    """The made-up step runs while nothing at all has been copied."""
    folder = str(write_tiny_model(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(llm_module, "load_model", lambda config, **given: load_model(config, progress=given["progress"]))
        with LLM(folder, **SETTINGS, **start) as llm:
            expected = first_answers(llm, num_prompts)
    may_go_on, copy = threading.Event(), parallel_copy._copy_on_host
    rehearse, rehearsed = engine_graphs.rehearse, []

    def late(target: torch.Tensor, source: torch.Tensor) -> None:
        assert may_go_on.wait(60)
        copy(target, source)

    def while_they_wait(executor: Any) -> None:
        rehearsed.append(len([thread for thread in threading.enumerate() if thread.name.startswith("weights")]))
        rehearse(executor)
        torch.cuda.synchronize()
        may_go_on.set()

    monkeypatch.setattr(parallel_copy, "_copy_on_host", late)
    monkeypatch.setattr(engine_graphs, "rehearse", while_they_wait)
    with LLM(folder, **SETTINGS, **start) as llm:
        assert len(rehearsed) == 1 and rehearsed[0] > 0
        assert llm.stats()["dispatch"]["steps"] == 0
        assert first_answers(llm, num_prompts) == expected


def test_a_copy_that_fails_leaves_nothing_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(write_tiny_model(tmp_path))
    with LLM(folder, capture="background", **SETTINGS) as llm:  # what libraries keep is there after this one
        llm.generate([PROMPTS[0]], FIRST)
    gc.collect()
    before = torch.cuda.memory_allocated()

    def fails(*_: Any) -> None:
        time.sleep(0.2)  # the engine is being made meanwhile
        raise OSError("planted")

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fails)
    with pytest.raises(OSError, match="planted"):
        LLM(folder, capture="background", **SETTINGS)
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_a_head_start_leaves_one_workspace_which_the_engine_uses() -> None:
    """The thread's cuBLAS handle is taken over with its workspace: a first product here allocates none."""
    done = run(
        "from ostinato.engine.before_torch import finish_head_start, head_start\n"
        "head_start('cuda')\n"
        "import torch\n"
        "finish_head_start()\n"
        "assert torch.cuda.is_initialized()\n"
        "there = torch.cuda.memory_allocated()\n"
        "a = torch.ones(64, 64, dtype=torch.bfloat16, device='cuda')\n"
        "b = a @ a\n"
        "torch.cuda.synchronize()\n"
        "assert b.sum().item() == 64 ** 3\n"
        "del a, b\n"
        "assert torch.cuda.memory_allocated() == there, (there, torch.cuda.memory_allocated())\n"
        "assert there <= 128 << 20, there\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("meanwhile", ["", "import torch; "])
def test_a_process_that_ends_meanwhile_ends_as_it_says(meanwhile: str) -> None:
    """A thread inside of torch must not take it down."""
    done = run(
        f"import sys; from ostinato.engine.before_torch import head_start; head_start('cuda'); {meanwhile}sys.exit(3)"
    )
    assert done.returncode == 3, done.stderr
