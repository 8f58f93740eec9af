"""`lazy_names`: imported on first use, then an ordinary attribute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PACKAGE = """
from ostinato._lazy import lazy_names
__getattr__, __dir__ = lazy_names(__name__, {"answer": "lazy_probe.inner", "gone": "lazy_probe.inner"})
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lazy_probe"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    (folder / "inner.py").write_text("answer = object()", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lazy_probe", "lazy_probe.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("probe")
def test_the_home_is_imported_on_first_use_only() -> None:
    import lazy_probe

    assert "lazy_probe.inner" not in sys.modules
    first = lazy_probe.answer
    assert sys.modules["lazy_probe.inner"].answer is first
    assert vars(lazy_probe)["answer"] is first


@pytest.mark.usefixtures("probe")
def test_dir_lists_names_that_are_not_loaded_yet() -> None:
    import lazy_probe

    assert {"answer", "gone"} <= set(dir(lazy_probe))
    assert "lazy_probe.inner" not in sys.modules


@pytest.mark.usefixtures("probe")
def test_an_unknown_name_and_a_stale_table_entry_are_attribute_errors() -> None:
    import lazy_probe

    with pytest.raises(AttributeError, match=r"module 'lazy_probe' has no attribute 'anser'"):
        _ = lazy_probe.anser
    with pytest.raises(AttributeError, match="gone"):
        _ = lazy_probe.gone
