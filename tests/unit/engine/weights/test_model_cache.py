"""The cache of converted models: whole entries only, whoever writes at once."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ostinato.engine.weights import cache as cache_module
from ostinato.engine.weights.cache import ModelCache, cache_root
from ostinato.errors import UnwritableCacheError


def publish(cache: ModelCache, name: str, content: str) -> Path:
    with cache.staging() as staging:
        folder = staging / "model"
        folder.mkdir()
        (folder / "data").write_text(content, encoding="utf-8")
        return cache.publish(folder, name, origin="test")


def leftovers(root: Path) -> list[str]:
    return [name for name in os.listdir(root / "models") if name.startswith(".")]


def test_root_from_argument_environment_and_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root(tmp_path / "a") == tmp_path / "a"
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("OSTINATO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "ostinato"


def test_an_entry_is_found_after_publishing_and_not_before(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    assert cache.find("org/model") is None and not (tmp_path / "models").exists()
    entry = publish(cache, "org/model", "x")
    assert cache.find("org/model") == entry == tmp_path / "models" / "org--model"
    assert (entry / "data").read_text() == "x" and leftovers(tmp_path) == []


def test_the_first_of_two_writers_wins(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    publish(cache, "m", "first")
    assert (publish(cache, "m", "second") / "data").read_text() == "first"
    assert leftovers(tmp_path) == []


def test_many_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def write(number: int) -> Path:
        barrier.wait()
        return publish(ModelCache(tmp_path), "m", str(number) * 1000)

    with ThreadPoolExecutor(8) as pool:
        entries = set(pool.map(write, range(8)))
    (entry,) = entries
    content = (entry / "data").read_text()
    assert len(content) == 1000 and len(set(content)) == 1
    assert os.listdir(tmp_path / "models") == ["m"]


@pytest.mark.parametrize("marker", ['{"converter": 0}', "{", None])
def test_an_outdated_or_broken_entry_is_replaced(tmp_path: Path, marker: str | None) -> None:
    cache = ModelCache(tmp_path)
    old = cache.entry_path("m")
    old.mkdir(parents=True)
    (old / "data").write_text("old", encoding="utf-8")
    if marker is not None:
        (old / "ostinato.json").write_text(marker, encoding="utf-8")
    assert cache.find("m") is None
    assert (publish(cache, "m", "new") / "data").read_text() == "new"
    assert leftovers(tmp_path) == []


def test_a_newer_converter_does_not_take_old_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(ModelCache(tmp_path), "m", "old")
    monkeypatch.setattr(cache_module, "CONVERTER_VERSION", cache_module.CONVERTER_VERSION + 1)
    assert ModelCache(tmp_path).find("m") is None


def test_staging_is_removed_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ModelCache(tmp_path).staging() as staging:
        (staging / "half").touch()
        raise KeyError
    assert leftovers(tmp_path) == []


def test_what_killed_runs_left_goes_but_live_folders_stay(tmp_path: Path) -> None:
    old, young = tmp_path / "models" / ".staging-old", tmp_path / "models" / ".staging-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    with ModelCache(tmp_path).staging():
        assert young.exists() and not old.exists()


def test_a_full_disk_is_an_unwritable_cache(tmp_path: Path) -> None:
    with pytest.raises(UnwritableCacheError, match="No space left"), ModelCache(tmp_path).staging():
        raise OSError(28, "No space left on device")


def test_other_errors_inside_staging_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), ModelCache(tmp_path).staging():
        (tmp_path / "absent").read_text()


@pytest.mark.parametrize("root", ["/proc/absent", "/dev/null/x", "file", "link", "x" * 300])
def test_a_folder_that_cannot_be_made_is_an_unwritable_cache(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/proc/absent")
    cache = ModelCache(tmp_path / root)
    assert cache.find("m") is None
    with pytest.raises(UnwritableCacheError, match="cannot write the cache") as caught, cache.staging():
        pass
    assert "OSTINATO_CACHE" in (caught.value.fix or "")


def test_a_home_that_nobody_has_is_an_unwritable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", "~nobody-at-all/x")
    with pytest.raises(UnwritableCacheError, match="~nobody-at-all/x"):
        cache_root()
