"""`ALL`: the planted faults by row."""

from __future__ import annotations

from ostinato.testing.faults.baked_number import BAKED_NUMBER
from ostinato.testing.faults.break_outputs import CHANGED_BREAK_OUTPUT, FRESH_BREAK_OUTPUT
from ostinato.testing.faults.bucket_sizes import COSTLY_BUCKET, PEAK_ABOVE_BUCKETS
from ostinato.testing.faults.collected_in_capture import COLLECTED_IN_CAPTURE
from ostinato.testing.faults.failed_captures import FAILED_CAPTURES
from ostinato.testing.faults.fault import Fault
from ostinato.testing.faults.first_jit import FIRST_JIT
from ostinato.testing.faults.full_cache import FULL_CACHE
from ostinato.testing.faults.grown_workspace import GROWN_WORKSPACE
from ostinato.testing.faults.held_output import HELD_OUTPUT
from ostinato.testing.faults.hidden_error import HIDDEN_ERROR
from ostinato.testing.faults.host_metadata import HOST_METADATA
from ostinato.testing.faults.host_sync import HOST_SYNC
from ostinato.testing.faults.index_minus_one import INDEX_MINUS_ONE
from ostinato.testing.faults.lazy_flag import LAZY_FLAG
from ostinato.testing.faults.long_context import FROZEN_SPLITS, SHORT_TABLE
from ostinato.testing.faults.memory_estimate import MEMORY_ESTIMATE
from ostinato.testing.faults.new_input import NEW_INPUT
from ostinato.testing.faults.other_thread import OTHER_THREAD
from ostinato.testing.faults.padding_leak import PADDING_LEAK
from ostinato.testing.faults.paged_cache import PADDED_KV_WRITE, STALE_INDEX_TAIL
from ostinato.testing.faults.pending_copy import PENDING_COPY
from ostinato.testing.faults.prompt_as_decode import PROMPT_AS_DECODE
from ostinato.testing.faults.random_draws import RANDOM_DRAWS
from ostinato.testing.faults.rank_keys import RANK_KEYS
from ostinato.testing.faults.rebound_weights import REBOUND_WEIGHTS, UNLOADED_ADAPTER
from ostinato.testing.faults.serving_capture import SERVING_CAPTURE
from ostinato.testing.faults.shared_buffer import SHARED_BUFFER
from ostinato.testing.faults.side_stream import SIDE_STREAM
from ostinato.testing.faults.unbroken_attention import UNBROKEN_ATTENTION
from ostinato.testing.faults.weak_argument import WEAK_ARGUMENT

__all__ = ["ALL"]

_FAULTS = (
    NEW_INPUT,
    REBOUND_WEIGHTS,
    FRESH_BREAK_OUTPUT,
    CHANGED_BREAK_OUTPUT,
    WEAK_ARGUMENT,
    HELD_OUTPUT,
    GROWN_WORKSPACE,
    BAKED_NUMBER,
    HOST_METADATA,
    FROZEN_SPLITS,
    PADDED_KV_WRITE,
    INDEX_MINUS_ONE,
    PADDING_LEAK,
    STALE_INDEX_TAIL,
    PROMPT_AS_DECODE,
    UNBROKEN_ATTENTION,
    LAZY_FLAG,
    FIRST_JIT,
    HOST_SYNC,
    SIDE_STREAM,
    OTHER_THREAD,
    HIDDEN_ERROR,
    FAILED_CAPTURES,
    SERVING_CAPTURE,
    FULL_CACHE,
    PEAK_ABOVE_BUCKETS,
    COSTLY_BUCKET,
    COLLECTED_IN_CAPTURE,
    RANK_KEYS,
    MEMORY_ESTIMATE,
    RANDOM_DRAWS,
    PENDING_COPY,
    SHORT_TABLE,
    SHARED_BUFFER,
    UNLOADED_ADAPTER,
)
ALL: dict[int, Fault] = {fault.row: fault for fault in _FAULTS}
"""Row -> fault."""
