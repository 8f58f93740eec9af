"""Files are whole; links and pipes stay what they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ostinato._whole_file import replace_file


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("one", "zwei: \u00e4"):
        replace_file(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_they_might_if_open_had_made_it(tmp_path: Path) -> None:
    plain, new, older = (tmp_path / name for name in ("plain", "new", "older"))
    plain.write_text("")
    older.write_text("")
    older.chmod(0o640)
    for path in (new, older):
        replace_file(path, "text")
    assert new.stat().st_mode == plain.stat().st_mode
    assert older.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to(target)
    for text in ("first", "second"):  # there is no target at first
        replace_file(link, text)
        assert link.is_symlink() and target.read_text() == text


def test_a_pipe_stays_one_and_takes_the_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    replace_file(pipe, "text")
    reader.join(timeout=10)
    assert found == ["text"] and pipe.is_fifo()


def test_a_pipe_without_a_path_takes_the_text() -> None:
    """What ``/dev/stdout`` is in front of a ``|``, and ``>(...)`` everywhere."""
    reads, writes = os.pipe()
    try:
        replace_file(Path(f"/dev/fd/{writes}"), "text")
        assert os.read(reads, 10) == b"text"
    finally:
        os.close(reads)
        os.close(writes)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(OSError):
        replace_file(one, "text")
    assert one.is_symlink() and other.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
