"""A module that is imported is followed once, whoever imports it, and leaves no trace."""

import importlib
import importlib.util
import sys
import threading
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from ostinato.runtime.capture.arrival import on_arrival

NAME = "arrives_for_a_test"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Where the module is, not imported yet."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {NAME}.inner import value\n")
    (folder / "inner.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_it_is_told_when_all_of_it_is_there(module):
    seen, finders = [], list(sys.meta_path)
    with on_arrival(NAME, lambda arrived: seen.append(arrived.value)):
        import colorsys  # noqa: F401 - another module

        assert seen == []
        importlib.import_module(f"{NAME}.inner")
        assert seen == [3]
        importlib.import_module(NAME)
    assert seen == [3]
    assert sys.meta_path == finders
    arrived = sys.modules[NAME]
    assert type(arrived.__spec__.loader) is SourceFileLoader and arrived.__loader__ is arrived.__spec__.loader


def test_another_threads_import_counts(module):
    seen = []
    with on_arrival(NAME, lambda arrived: seen.append(arrived.__name__)):
        thread = threading.Thread(target=importlib.import_module, args=(NAME,))
        thread.start()
        thread.join()
    assert seen == [NAME]


def test_after_the_end_nothing_is_told(module):
    seen = []
    with on_arrival(NAME, seen.append):
        spec = importlib.util.find_spec(NAME)  # found, and not run yet
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    importlib.import_module(NAME)
    assert seen == []


def test_an_import_that_fails_fails_as_ever(module):
    seen = []
    (module / "inner.py").write_text("raise ZeroDivisionError\n")
    with on_arrival(NAME, seen.append), on_arrival("not_to_be_found_anywhere", seen.append):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(NAME)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("not_to_be_found_anywhere")
        (module / "inner.py").write_text("value = 45\n")
        importlib.invalidate_caches()
        importlib.import_module(NAME)
    assert [arrived.value for arrived in seen] == [45]


def test_two_followers_do_not_ask_each_other_for_ever(module):
    seen = []
    with on_arrival(NAME, lambda _: seen.append("outer")), on_arrival(NAME, lambda _: seen.append("inner")):
        importlib.import_module(NAME)
    assert sorted(seen) == ["inner", "outer"]


def test_a_folder_without_code_is_found_and_is_no_arrival(module):
    seen = []
    (module / "__init__.py").unlink()
    with on_arrival(NAME, seen.append):
        assert importlib.util.find_spec(NAME) is not None
        assert importlib.import_module(f"{NAME}.inner").value == 3
    assert seen == []


def test_a_loader_that_serves_more_modules_tells_of_the_one_alone(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr(f"{NAME}.py", "")
        archive.writestr(f"{NAME}_too.py", "")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    seen = []
    with on_arrival(NAME, lambda arrived: seen.append(arrived.__name__)):
        assert importlib.util.find_spec(NAME).loader.is_package(NAME) is False  # asked for, and not imported
        importlib.import_module(f"{NAME}_too")
        importlib.import_module(NAME)
    assert seen == [NAME]
    del sys.modules[NAME], sys.modules[f"{NAME}_too"]


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_a_finder_of_old_is_passed_over(module, monkeypatch):
    class Old:
        @staticmethod
        def find_module(name, path=None):
            return None

    monkeypatch.setattr(sys, "meta_path", [Old, *sys.meta_path])
    seen = []
    with on_arrival(NAME, seen.append):
        importlib.import_module(NAME)
    assert seen == [sys.modules[NAME]]
