"""`--config FILE`: settings from a file, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.cli.config_file import with_config_file
from ostinato.engine.config import EngineConfig
from ostinato.errors import OstinatoError

Command = Callable[..., int]
Capture = pytest.CaptureFixture[str]


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_settings_reach_the_engine(fake_llm: Any, ostinato_command: Command, tmp_path: Path) -> None:
    path = write(tmp_path, {"decode_sizes": [4, 1], "token_sizes": [16], "shape_batches": True})
    assert ostinato_command("generate", "--prompt", "a b", "--config", str(path)) == 0
    config = fake_llm.opened[0].config
    assert (config.decode_sizes, config.token_sizes, config.shape_batches) == ((1, 4), (16,), True)


def test_what_a_plan_writes_is_taken(fake_llm: Any, ostinato_command: Command, tmp_path: Path) -> None:
    histogram = write(tmp_path, {"decode": {"3": 10, "5": 2}, "mixed": {"40": 4}})
    sizes = tmp_path / "sizes.json"
    assert ostinato_command("plan", "--histogram", str(histogram), "--out", str(sizes)) == 0
    assert ostinato_command("generate", "--prompt", "a b", "--config", str(sizes)) == 0
    assert fake_llm.opened[0].config.decode_sizes == (3, 5)
    assert fake_llm.opened[0].config.token_sizes == (40,)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ([1, 2], "no object of settings"),
        ({"decode_size": [1]}, "did you mean 'decode_sizes'"),
        ({"zzz": 1}, "valid: compile_max_tokens"),
        ({"kv_tokens": 64}, "sets 'kv_tokens', for which there is an option\n  fix: give --kv-tokens instead"),
        ({"max_num_req": 1}, "did you mean 'max_num_reqs'"),
        ({"decode_sizes": [0]}, "'decode_sizes' must be an integer >= 1"),
        ({"decode_sizes": 4}, "set 'decode_sizes' accordingly"),
        ({"token_sizes": "vlm"}, "unknown 'token_sizes' 'vlm'"),
    ],
)
def test_bad_files(
    fake_llm: Any, ostinato_command: Command, capsys: Capture, tmp_path: Path, content: Any, words: str
) -> None:
    assert ostinato_command("generate", "--prompt", "a", "--config", str(write(tmp_path, content))) == 2
    assert words in capsys.readouterr().err
    assert not fake_llm.opened


def test_a_file_that_is_not_there(ostinato_command: Command, capsys: Capture, tmp_path: Path) -> None:
    assert ostinato_command("generate", "--prompt", "a", "--config", str(tmp_path / "none.json")) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_a_file_nothing_changes() -> None:
    config = EngineConfig(seed=3)
    assert with_config_file(config, None, options=()) is config


def test_a_value_that_contradicts_an_option(tmp_path: Path) -> None:
    path = write(tmp_path, {"decode_sizes": [32]})
    with pytest.raises(OstinatoError, match="max_num_reqs"):
        with_config_file(EngineConfig(max_num_reqs=8), path, options=("max_num_reqs",))
