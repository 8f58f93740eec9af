"""One file per scenario: ``check(run)`` raises before anything is measured, ``measure(run)`` adds rows."""

from __future__ import annotations

__all__: list[str] = []
