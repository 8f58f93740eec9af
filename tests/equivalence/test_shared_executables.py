"""An engine whose graphs share executables gives the tokens of one whose graphs have their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.testing.tiny_models import write_tiny_model

PROMPTS = [[3, 7, 11], [5] * 9, [2, 4, 6, 8, 10], [9]]
PARAMS = [
    SamplingParams(max_tokens=n, temperature=t, seed=1, ignore_eos=True) for n, t in ((9, 0), (3, 1), (6, 0), (2, 1))
]


def answers(folder: Path, **settings: Any) -> tuple[list[list[int]], dict[str, Any], dict[str, int]]:
    """Tokens of two rounds; what `stats` says of graphs and steps."""
    with LLM(
        str(folder),
        device="cpu",
        max_num_reqs=4,
        max_model_len=64,
        decode_sizes=(1, 2, 4),
        token_sizes=(4, 8, 32),
        **settings,
    ) as llm:
        found = [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]
        found += [output.token_ids for output in llm.generate(PROMPTS[::-1], PARAMS)]
        stats = llm.stats()
        return found, stats["graphs"], stats["dispatch"]["by_runtime_mode"]


@pytest.mark.parametrize("mode", ["full_and_piecewise", "piecewise"])
def test_tokens_are_those_of_own_executables(tmp_path: Path, mode: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    tokens, graphs, steps = answers(folder, mode=mode)
    shared_tokens, shared_graphs, shared_steps = answers(folder, mode=mode, executables="shared")
    assert shared_tokens == tokens and shared_steps == steps and "EAGER" not in steps
    own, shared = graphs["executables"], shared_graphs["executables"]
    assert (own["count"], own["shared_groups"], own["switches"]) == (graphs["segments"], 0, 0)
    assert shared_graphs["segments"] == graphs["segments"] and shared_graphs["count"] == graphs["count"]
    assert shared["count"] < own["count"] / 2 and shared["nodes"] < own["nodes"] / 2
    assert shared["shared_groups"] > 0 and shared["switches"] > 0
