"""`run_eager`: the callable as it is. Breaks are plain calls; nothing is padded unless the caller did."""

from __future__ import annotations

from typing import Any

from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.runners.runner import Call

__all__ = ["run_eager"]


def run_eager(call: Call) -> Any:
    """Run ``call`` with no capture and no break handler."""
    with handling_breaks(None):
        return call()
