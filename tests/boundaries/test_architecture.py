"""ARCHITECTURE.md draws the tree that is there: each room exists or is marked as planned, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ostinato"


def drawn_rooms() -> dict[str, bool]:
    """Folder below src/ostinato -> is it marked as planned? Read from the first code block."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = text.split("```")[1]
    rooms: dict[str, bool] = {}
    above: list[str] = []
    for line in block.splitlines():
        match = re.match(r"( *)([a-z_]+)/ ", line)
        if match:
            depth = len(match[1]) // 2 - 1
            above = [*above[:depth], match[2]]
            rooms["/".join(above)] = "(planned)" in line
    return rooms


@pytest.mark.parametrize(("room", "planned"), drawn_rooms().items())
def test_a_drawn_room_exists_or_is_planned(room: str, planned: bool) -> None:
    assert (SOURCE / room / "__init__.py").is_file() is not planned


def test_no_room_is_left_out() -> None:
    folders = {str(file.parent.relative_to(SOURCE)) for file in SOURCE.rglob("__init__.py")} - {"."}
    two_deep = {folder for folder in folders if folder.count("/") <= 1}
    assert two_deep <= set(drawn_rooms())
