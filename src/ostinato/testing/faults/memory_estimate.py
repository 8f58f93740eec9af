"""Row 30: the estimate of the KV cache is negative, far too large, or counts something twice."""

from __future__ import annotations

import torch

from ostinato.errors import OutOfMemoryError
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["MEMORY_ESTIMATE"]

_GIB = 2**30
_PAGE_SIZE, _TOKEN_BYTES = 16, 1 << 17


def _protected(device: str) -> Outcome:
    """Nothing below zero where nothing fits; and what is asked for and does not fit is refused with its size."""
    from ostinato.engine.config import EngineConfig  # the engine's libraries are an extra
    from ostinato.engine.execution.memory_budget import SHARE_BEFORE_CAPTURE, asked_kv_tokens, kv_budget_bytes
    from ostinato.engine.kvcache import how_many_pages

    pages = [how_many_pages(budget_bytes=n, page_size=_PAGE_SIZE, token_bytes=_TOKEN_BYTES) for n in (-_GIB, 0, _GIB)]
    assert pages == [0, 0, 512]
    config = EngineConfig(kv_tokens=10**15, max_num_reqs=1, max_model_len=64)
    budget = kv_budget_bytes(torch.device(device), SHARE_BEFORE_CAPTURE[device])
    tokens = asked_kv_tokens(config, budget_bytes=budget, token_bytes=_TOKEN_BYTES)
    return "refused", tokens


def _unprotected(device: str) -> Outcome:
    """A share of the whole device, less weights and an estimate of the graphs; what others hold is not looked at."""
    total, weights, graphs_estimate = 16 * _GIB, 13 * _GIB, 3 * _GIB
    budget = int(total * 0.9) - weights - graphs_estimate
    num_tokens = budget // _TOKEN_BYTES
    try:
        torch.empty(num_tokens, device=device)
    except RuntimeError as error:
        return "a cache", f"{num_tokens} tokens: {str(error).splitlines()[0]}"
    return "a cache", "a cache"


MEMORY_ESTIMATE = Fault(
    row=30,
    title="the memory estimate is negative, 3x too large, or counted twice",
    source="vllm#44740, #45178, #57936",
    protection="the cache gets its size from what is free once the graphs are captured, never less than nothing; what "
    "does not fit is refused with its size and the knob",
    cost="one look at the free memory at start, and one after capture",
    caught_by=OutOfMemoryError,
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
