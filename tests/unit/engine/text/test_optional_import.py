"""The engine imports without its optional libraries and asks for them by name when used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ostinato.engine.text.optional_import import require
from ostinato.errors import EngineError

OPTIONAL = ("gguf", "huggingface_hub", "tokenizers", "safetensors", "jinja2", "numpy")


def test_text_and_weights_import_none_of_the_optional_libraries() -> None:
    # torch may pull in numpy or jinja2 by itself, so these two are only judged before it is loaded.
    program = (
        "import sys, ostinato.engine.text\n"
        f"early = [m for m in {OPTIONAL!r} if m in sys.modules]\n"
        "import ostinato.engine.weights\n"
        f"late = [m for m in {OPTIONAL[:4]!r} if m in sys.modules]\n"
        "print(early, late)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_a_missing_library_is_named_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(EngineError, match=r"'gguf' is needed to read files.*pip install 'ostinato\[engine\]'"):
        require("gguf", "read files")


def test_a_library_that_is_there_is_returned() -> None:
    assert require("json", "test").loads("1") == 1
