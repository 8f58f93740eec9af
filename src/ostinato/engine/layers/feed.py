"""The first op of a step: tokens that were sampled in the step before reach this one without the host."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.engine.layers.kernel_choice import takes_triton

__all__ = ["feed_ids"]


def feed_ids(input_ids: Tensor, feed_rows: Tensor, last_ids: Tensor) -> Tensor:
    """[num_tokens] int64: ``last_ids[feed_rows]`` where ``feed_rows`` > 0, else ``input_ids``.

    Args:
        input_ids: [num_tokens] int64, the tokens that the host knows.
        feed_rows: [num_tokens] int32, in ``[0, len(last_ids))``; 0 is no row, so it is safe as an index.
        last_ids: [max_num_reqs + 1] int64; a row without a token (-1) feeds token 0: its request has ended.
    """
    if takes_triton(input_ids):
        from ostinato.engine.layers.triton.feed import launch_feed

        return launch_feed(input_ids, feed_rows, last_ids)
    return torch.where(feed_rows > 0, last_ids[feed_rows].clamp(min=0), input_ids)
