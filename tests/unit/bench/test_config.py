"""What a benchmark may be asked for, refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostinato.bench.config import BenchConfig, parse_numbers
from ostinato.bench.scenario import run_bench
from ostinato.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batches": (1, 0)}, "batches"),
        ({"batches": ()}, "empty"),
        ({"tokens": (1 << 30,)}, "tokens"),
        ({"repeats": 0}, "repeats"),
        ({"num_requests": -1}, "num_requests"),
        ({"rates": (0.0,)}, "rates"),
        ({"rates": (float("inf"),)}, "rates"),
        ({"trace_speed": float("nan")}, "trace_speed"),
        ({"modes": ("ful",)}, "mode"),
        ({"variants": ("brakeable",)}, "variant"),
        ({"rates": (1.0,), "trace": Path("x.csv")}, "a trace has rates of its own"),
        ({"prompt_tokens": 4, "trace": Path("x.csv")}, "a trace has prompt_tokens of its own"),
        ({"output_tokens": 4, "trace": Path("x.csv")}, "a trace has output_tokens of its own"),
        ({"trace_speed": 2.0}, "trace_speed goes with a trace"),
    ],
)
def test_bad_settings_name_themselves(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        BenchConfig(**settings)
    assert caught.value.fix


def test_numbers_are_split_at_commas() -> None:
    assert parse_numbers("batches", "1, 8,29,") == (1, 8, 29)
    with pytest.raises(ConfigError, match="batches"):
        parse_numbers("batches", "1;8")


@pytest.mark.parametrize(
    ("scenario", "settings", "error", "says"),
    [
        ("decoding", {}, UnknownNameError, "decode"),
        ("decode", {"rates": (1.0,)}, ConfigError, "serve"),
        ("decode", {"peers": ("vlm",)}, UnknownNameError, "vllm"),
        ("decode", {"peers": ("breakable-cuda-graphs",)}, ConfigError, "vllm"),
        ("surface", {"peers": ("vllm",)}, ConfigError, "no use for peers"),
    ],
)
def test_a_run_is_refused_with_what_would_be_valid(
    scenario: str, settings: dict[str, Any], error: type[ConfigError], says: str
) -> None:
    with pytest.raises(error) as caught:
        run_bench(scenario, BenchConfig(**settings))
    assert says in str(caught.value)
