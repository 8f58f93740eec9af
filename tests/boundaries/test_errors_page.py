"""docs/errors.md says what src/ostinato/errors.py says; codes are unique and in their families."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ostinato import errors
from ostinato.cli.errors import entries

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("errors_page", ROOT / "tools" / "errors_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.render(), "stale: run `make docs`"


def test_every_family_has_a_heading(tool: ModuleType) -> None:
    assert {entry.code[3] for entry in entries()} == set(tool.FAMILIES)


def test_every_error_is_public() -> None:
    """The page and `ostinato errors` list the public names: one that is left out has a code that nobody can look up."""
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == {entry.name for entry in entries()}


def test_every_error_has_its_own_code() -> None:
    codes = [entry.code for entry in entries()]
    assert len(codes) == len(set(codes))
