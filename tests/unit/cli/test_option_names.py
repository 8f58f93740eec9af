"""Errors name a setting as its option is typed: in which words, and where they are left alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ostinato.cli.commands import COMMANDS, load_command
from ostinato.cli.option_names import name_options
from ostinato.errors import ConfigError


@dataclass
class Parameter:
    name: str
    opts: list[str] = field(default_factory=list)


PARAMETERS = [
    Parameter("max_num_reqs", ["--max-num-reqs"]),
    Parameter("max_num_batched_tokens", ["--max-num-batched-tokens"]),
    Parameter("tokens", ["-t", "--tokens"]),
    Parameter("is_cold", ["--cold"]),
    Parameter("scenario_file", ["SCENARIO_FILE"]),
]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "max_num_reqs must be <= max_num_batched_tokens (4)",
            "--max-num-reqs must be <= --max-num-batched-tokens (4)",
        ),
        ("decode has no use for is_cold", "decode has no use for --cold"),
        ("raise max_num_reqs.", "raise --max-num-reqs."),
        ("set max_num_reqs='many'", "set --max-num-reqs many"),
        ("use tokens='cuda:1', or tokens=2", "use --tokens cuda:1, or tokens=2"),
        ("use is_cold=\"a.b\" or cold='x', no_cold='x'", "use --cold a.b or --cold x, no_cold='x'"),
        ("tokens='a b', 'tokens='x''", "tokens='a b', 'tokens='x''"),
        ("/tmp/max_num_reqs/x and max_num_reqs.json", "/tmp/max_num_reqs/x and max_num_reqs.json"),
        ("full_max_num_reqs and max_num_reqs_of", "full_max_num_reqs and max_num_reqs_of"),
        ("x.json sets 'max_num_reqs' and \"max_num_reqs\"", "x.json sets 'max_num_reqs' and \"max_num_reqs\""),
        ("scenario_file is an argument", "scenario_file is an argument"),
        ("a step of 17 tokens", "a step of 17 tokens"),
    ],
)
def test_message_and_fix_name_options(text: str, named: str) -> None:
    error = ConfigError(text, fix=text, expected=text, got=text)
    name_options(error, PARAMETERS)
    assert (error.message, error.fix, error.context) == (named, named, {"expected": named, "got": text})


def test_a_single_word_is_a_setting_only_where_the_error_says_so() -> None:
    error = ConfigError("tokens must be at least the tokens of a page", fix="raise tokens", field="tokens", got=1)
    name_options(error, PARAMETERS)
    assert error.message == "--tokens must be at least the tokens of a page"
    assert (error.fix, error.context) == ("raise tokens", {"field": "--tokens", "got": 1})
    error = ConfigError("tokens must be >= 1, got 0", fix="set tokens accordingly", field="tokens")
    name_options(error, PARAMETERS)
    assert (error.message, error.fix) == ("--tokens must be >= 1, got 0", "set --tokens accordingly")
    error = ConfigError("tokens must be few", field="max_num_reqs")
    name_options(error, PARAMETERS)
    assert (error.message, error.context["field"]) == ("tokens must be few", "--max-num-reqs")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_says_a_name_that_nobody_can_type(name: str) -> None:
    """Each option is called by its parameter's words, or has the field's name on purpose."""
    options = {p.name: p.opts for p in load_command(name).params}
    for parameter, spellings in options.items():
        error = ConfigError(f"{parameter} is wrong", field=parameter)
        name_options(error, load_command(name).params)
        typed = [spelling for spelling in spellings if spelling.startswith("--")]
        assert error.message == f"{typed[0] if typed else parameter} is wrong"
