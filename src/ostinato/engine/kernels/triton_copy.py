"""The kernel that copies words. Called by `KernelCopy`."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import functools

import triton
import triton.language as tl
from torch import Tensor

from ostinato.engine.kernels.launcher import LAUNCHES_KEPT, Launch, Launcher

__all__ = ["launch_copy"]

_BLOCK = 512


@triton.jit(do_not_specialize=["num_words"])
def _copy_kernel(target, source, num_words, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_words
    tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@functools.cache
def _launcher() -> Launcher:
    return Launcher(_copy_kernel, "pinned copy", BLOCK=_BLOCK, num_warps=4)


@functools.lru_cache(maxsize=LAUNCHES_KEPT)
def _launch(num_words: int) -> Launch:
    return _launcher().at((-(-num_words // _BLOCK), 1, 1), num_words)


def launch_copy(target: Tensor, source: Tensor) -> None:
    """Copy ``source`` to ``target``, both [num_words] int64, that the device can reach."""
    num_words = target.shape[0]
    assert source.shape[0] == num_words, "as many words"
    _launch(num_words)(target, source)
