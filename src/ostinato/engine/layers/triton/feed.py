"""Input ids of a step, some of which only the device knows. Called by `feed_ids` on CUDA."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher

__all__ = ["launch_feed"]

_BLOCK = 256


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["num_tokens"])
def _feed_kernel(input_ids, feed_rows, last_ids, out, num_tokens, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_tokens
    row = tl.load(feed_rows + at, mask=inside, other=0)
    known = tl.load(input_ids + at, mask=inside, other=0)
    fed = tl.load(last_ids + row, mask=inside & (row > 0), other=0)
    tl.store(out + at, tl.where(row > 0, tl.maximum(fed, 0), known), mask=inside)


@functools.cache
def _launcher() -> Launcher:
    return Launcher(_feed_kernel, "feed", BLOCK=_BLOCK)


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(num_tokens: int) -> Launch:
    return _launcher().at((-(-num_tokens // _BLOCK), 1, 1), num_tokens)


def launch_feed(input_ids: Tensor, feed_rows: Tensor, last_ids: Tensor) -> Tensor:
    """See `feed_ids`."""
    out = torch.empty_like(input_ids)
    _launch(input_ids.shape[0])(input_ids, feed_rows, last_ids, out)
    return out
