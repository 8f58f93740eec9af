"""The ``ostinato`` command: one file per command, loaded only when that command runs."""

from __future__ import annotations

__all__: list[str] = []
