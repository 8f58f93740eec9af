"""`import ostinato` is free: no torch, no dependency; the public names all resolve, and are all declared."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ostinato

SOURCE = Path(ostinato.__file__)


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_import_loads_no_dependency() -> None:
    loaded = modules_after("import ostinato; ostinato.__version__; ostinato.OstinatoError; dir(ostinato)")
    assert "ostinato" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "typer", "rich", "safetensors", "tokenizers", "pydantic"})
    assert {name for name in loaded if name.startswith("ostinato.")} == {
        "ostinato._lazy",
        "ostinato._version",
        "ostinato.errors",
    }


# Packages that resolve names lazily: what type checkers see must be what the table resolves.
LAZY_PACKAGES = sorted(
    ".".join(["ostinato", *file.parent.relative_to(SOURCE.parent).parts])
    for file in SOURCE.parent.rglob("__init__.py")
    if "lazy_names(" in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_the_static_table_matches_what_type_checkers_see(package: str) -> None:
    module = import_module(package)
    declared: dict[str, str] = {}
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                declared |= {alias.name: str(statement.module) for alias in statement.names}
    assert declared == module._HOMES
    assert set(declared) <= set(module.__all__)
    assert set(module.__all__) - set(declared) <= set(vars(module))


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_every_lazy_name_resolves(package: str) -> None:
    module = import_module(package)
    for name, home in module._HOMES.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_first_success_needs_few_names() -> None:
    assert len(ostinato.__all__) <= 25


@pytest.mark.parametrize("name", sorted(ostinato._HOMES))
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(ostinato, name)
    assert value.__doc__, f"{name} has no docstring"
    assert getattr(ostinato, name) is value


def test_dir_lists_the_public_names() -> None:
    assert set(ostinato.__all__) <= set(dir(ostinato))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Grafed'"):
        _ = ostinato.Grafed
