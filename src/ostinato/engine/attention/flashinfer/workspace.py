"""How much scratch memory FlashInfer's planners can ever ask for: fixed before the first capture, never grown.

A plan places partial results of split contexts in a float workspace and its work lists in an integer one, both at
offsets that a captured graph bakes in. The bounds follow the planners of flashinfer-python 0.6.13 (DecodePlan and
PrefillPlan in its ``scheduler.cuh``); a plan that asked for more would fail there with an error of its own, and write
nothing. Called by `StepPlans`.
"""

from __future__ import annotations

from ostinato.engine.attention.backend import AttentionShape
from ostinato.engine.attention.flashinfer.support import uses_tensor_cores

__all__ = ["float_workspace_bytes", "int_workspace_bytes"]

_BLOCKS_PER_SM = 16
"""Thread blocks of 128 threads, the smallest that decode launches, that an SM of 2,048 threads can hold."""
_SPLIT_BLOCKS_PER_SM = 2  # for which the tensor-core planner splits
_LARGEST_TILE = 128  # query rows of a tensor-core tile; a row is one token of one query head
_SMALLEST_TILE = 16
_SLACK_BYTES = 4096  # for alignment


def float_workspace_bytes(shape: AttentionShape, *, num_sms: int) -> int:
    """Bytes that serve every plan of ``shape``.

    Args:
        num_sms: multiprocessors of the device.
    """
    group = shape.num_heads // shape.num_kv_heads
    split_blocks = _SPLIT_BLOCKS_PER_SM * num_sms // shape.num_kv_heads
    # A plan outside of graphs splits only while all its tiles fit on the device at once.
    prefill_rows = split_blocks * _LARGEST_TILE
    if uses_tensor_cores(shape):
        # Inside graphs it always splits, and has a block for each tile that there can be.
        tile = next((tile for tile in (_SMALLEST_TILE, 64) if group <= tile), _LARGEST_TILE)
        decode_rows = max(split_blocks, -(-shape.max_num_reqs * group // tile) + shape.max_num_reqs) * tile
    else:
        decode_rows = max(_BLOCKS_PER_SM * num_sms // shape.num_kv_heads, shape.max_num_reqs)
    # A row's partial sum, and the logarithm of its weights' sum.
    return max(prefill_rows, decode_rows) * shape.num_heads * (shape.head_dim + 1) * 4 + _SLACK_BYTES


def int_workspace_bytes(shape: AttentionShape, *, num_reqs: int, num_tokens: int, num_sms: int) -> int:
    """Bytes of the work lists of one plan.

    Args:
        num_reqs: of the batch, padded ones included.
        num_tokens: query rows of the batch.
        num_sms: multiprocessors of the device.
    """
    group = shape.num_heads // shape.num_kv_heads
    tiles = -(-num_tokens * group // 64) + 2 * num_reqs
    blocks = max(_BLOCKS_PER_SM * num_sms // shape.num_kv_heads, tiles)
    per_block = 3 * 4 + 1  # request, query tile, KV tile; and whether it is live
    return blocks * per_block + 4 * (2 * num_reqs + num_tokens + 8) + _SLACK_BYTES
