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
    from ostinato.engine.execution.memory_budget import choose_kv_tokens
    from ostinato.engine.kvcache import how_many_pages
    from ostinato.engine.models import ModelConfig
    from ostinato.testing.tiny_models import tiny_config

    pages = [how_many_pages(budget_bytes=n, page_size=_PAGE_SIZE, token_bytes=_TOKEN_BYTES) for n in (-_GIB, 0, _GIB)]
    assert pages == [0, 0, 512]
    config = EngineConfig(kv_tokens=10**15, max_num_reqs=1, max_model_len=64)
    model = ModelConfig.from_hf(tiny_config())
    tokens = choose_kv_tokens(config, model, element_bytes=4, device=torch.device(device))
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
    protection="the cache takes a share of what is free once the weights are there, never less than nothing; what does "
    "not fit is refused with its size and the knob",
    cost="one look at the free memory at start",
    caught_by=OutOfMemoryError,
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
