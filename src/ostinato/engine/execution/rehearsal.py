"""One made-up eager step, so that the first real one finds kernels and libraries loaded.

What it computes counts for nothing: weights may still be on their way. It is no step of the engine: nothing decides it,
counts it or hears of it, and what it writes is put back. Called by `EngineGraphs` while there is waiting to be done.
"""

from __future__ import annotations

import logging
from typing import Final

import torch

from ostinato.engine.execution.costs import EngineSteps
from ostinato.engine.execution.executor import Executor
from ostinato.runtime import GraphKey, RuntimeMode

__all__ = ["rehearse"]

logger = logging.getLogger("ostinato")

_NUM_TOKENS: Final = 16
"""A short prompt. Its kernels are those of all steps of up to 16 tokens, and mostly of longer ones."""


def rehearse(executor: Executor) -> None:
    """Run a prompt of a few tokens, all in the null page, up to its greedy token; waits for nothing on the device.

    Args:
        executor: idle. No request may have been served, since the static buffers are written.
    """
    num_tokens = min(_NUM_TOKENS, executor.limits.max_num_batched_tokens)
    written = list(EngineSteps(executor).state().values())  # as by made-up steps that are timed
    try:
        with torch.inference_mode():
            kept = [tensor.clone() for tensor in written]
            try:
                executor.run_made_up(GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=num_tokens))
            finally:
                for tensor, values in zip(written, kept, strict=True):
                    tensor.copy_(values)
    except Exception as error:  # a real step would meet it too, and there it has a request that can be told
        logger.warning("a made-up step failed, so the first real one loads its kernels itself: %s", error)
