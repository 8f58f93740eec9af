"""`ALL`: the planted faults by row."""

from __future__ import annotations

from ostinato.testing.faults.baked_number import BAKED_NUMBER
from ostinato.testing.faults.break_outputs import CHANGED_BREAK_OUTPUT, FRESH_BREAK_OUTPUT
from ostinato.testing.faults.fault import Fault
from ostinato.testing.faults.first_jit import FIRST_JIT
from ostinato.testing.faults.held_output import HELD_OUTPUT
from ostinato.testing.faults.hidden_error import HIDDEN_ERROR
from ostinato.testing.faults.host_metadata import HOST_METADATA
from ostinato.testing.faults.host_sync import HOST_SYNC
from ostinato.testing.faults.lazy_flag import LAZY_FLAG
from ostinato.testing.faults.new_input import NEW_INPUT
from ostinato.testing.faults.paged_cache import PADDED_KV_WRITE, STALE_INDEX_TAIL
from ostinato.testing.faults.serving_capture import SERVING_CAPTURE
from ostinato.testing.faults.unbroken_attention import UNBROKEN_ATTENTION

__all__ = ["ALL"]

_FAULTS = (
    NEW_INPUT,
    FRESH_BREAK_OUTPUT,
    CHANGED_BREAK_OUTPUT,
    HELD_OUTPUT,
    BAKED_NUMBER,
    HOST_METADATA,
    PADDED_KV_WRITE,
    STALE_INDEX_TAIL,
    UNBROKEN_ATTENTION,
    LAZY_FLAG,
    FIRST_JIT,
    HOST_SYNC,
    HIDDEN_ERROR,
    SERVING_CAPTURE,
)
ALL: dict[int, Fault] = {fault.row: fault for fault in _FAULTS}
"""Row -> fault."""
