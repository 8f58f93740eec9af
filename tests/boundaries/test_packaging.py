"""pyproject.toml, constraints.txt and the Makefile agree with one another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What make installs; `cuda` needs a GPU build of torch and is pinned by whoever has the GPU.
PINNED_EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"cuda"})


def canonical(requirement: str) -> str:
    """The package's name as an index compares it, without version and extras."""
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_runtime_depends_on_torch_alone() -> None:
    assert [canonical(requirement) for requirement in PROJECT["dependencies"]] == ["torch"]


@pytest.mark.parametrize("extra", PINNED_EXTRAS)
def test_every_requirement_is_pinned(extra: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonical(line) for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)}
    wanted = {canonical(requirement) for requirement in PROJECT["optional-dependencies"][extra]}
    assert wanted - {"ostinato"} <= pins


def test_every_line_of_the_constraints_is_an_exact_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
