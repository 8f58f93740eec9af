"""SmolLM2 itself on a GPU: every partition and mode answers as eager does, token by token.

Needs the model in the cache; `ostinato generate` on a machine with a network puts it there.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from ostinato import LLM, SamplingParams
from ostinato.engine.config import DEFAULT_MODEL
from ostinato.engine.weights.cache import ModelCache, cache_root

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(ModelCache(cache_root()).find(DEFAULT_MODEL) is None, reason="SmolLM2 is not in the cache"),
]

QUESTIONS = [
    "What is the capital of France?",
    "Say hello.",
    "Count from one to ten.",
    "Explain in two sentences why the sky is blue, and do not use the word light.",
    "Which of these is a fruit: " + ", ".join(["hammer", "apple", "cloud", "river"] * 8) + "?",
]
PARAMS = SamplingParams(max_tokens=16, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_reqs": 8,
    "max_num_batched_tokens": 64,
    "token_sizes": (16, 64),
    "decode_sizes": (1, 4, 8),
}
MODES = ("piecewise", "full", "full_decode_only", "full_and_piecewise")
CASES = [
    *(("breakable", "none", mode) for mode in MODES),
    *(("fx", compiler, mode) for compiler in ("none", "inductor") for mode in MODES),
    *(("inductor", "none", mode) for mode in MODES),
    ("breakable", "inductor", "full_and_piecewise"),
]
FEW: dict[str, Any] = {"token_sizes": (64,), "decode_sizes": (8,)}
"""For modes of full graphs only: 30 layers compile for some ten seconds a kind of batch, and again for sizes of 1."""


def answers(**settings: Any) -> tuple[list[list[int]], list[str], set[str]]:
    """Token ids and texts of all questions, and the runtime modes of the steps."""
    with LLM(**{**SETTINGS, **settings}) as llm:
        outputs = llm.chat([[{"role": "user", "content": question}] for question in QUESTIONS], PARAMS)
        assert all(output.error is None for output in outputs)
        modes = set(llm.stats()["dispatch"]["by_runtime_mode"])
        return [output.token_ids for output in outputs], [output.text for output in outputs], modes


@pytest.fixture(scope="module")
def eager() -> list[list[int]]:
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    token_ids, texts, modes = answers(mode="none")
    torch.set_float32_matmul_precision(previous)
    assert "Paris" in texts[0]
    assert modes == {"EAGER"}
    return token_ids


@pytest.mark.parametrize(("partition", "compiler", "mode"), CASES)
def test_it_answers_as_eager_does(eager: list[list[int]], partition: str, compiler: str, mode: str) -> None:
    has_pieces = mode in ("piecewise", "full_and_piecewise")
    few = FEW if partition != "breakable" and not has_pieces else {}
    token_ids, texts, modes = answers(partition=partition, compile=compiler, mode=mode, **few)
    assert "Paris" in texts[0]
    assert token_ids == eager
    taken = {
        "piecewise": {"PIECEWISE"},
        "full": {"FULL"} if find_spec("triton") else {"FULL", "PIECEWISE"},
        "full_decode_only": {"FULL", "EAGER"},
        "full_and_piecewise": {"FULL", "PIECEWISE"},
    }
    assert modes == taken[mode]
