"""docs/faults.md says what the planted faults say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ostinato.testing.faults import ALL

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("faults_page", ROOT / "tools" / "faults_page.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.render(), "stale: run `make docs`"
    assert tool.render().count('<a id="row-') == len(ALL)
