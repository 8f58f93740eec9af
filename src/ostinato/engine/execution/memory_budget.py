"""How many tokens of KV cache an engine gets, from the memory that is free. Says which knob gives how much.

Called by `KvPool`: before graphs are captured for the most that there could be, and afterwards for what there is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.kvcache import how_many_pages, pages_for_tokens
from ostinato.engine.models.footprint import Footprint
from ostinato.engine.paging import pages_for
from ostinato.errors import OutOfMemoryError

__all__ = [
    "SHARE_AFTER_CAPTURE",
    "SHARE_BEFORE_CAPTURE",
    "SHARE_IF_ASKED",
    "asked_kv_tokens",
    "available_bytes",
    "check_budget_holds_weights",
    "check_weights_fit",
    "kv_budget_bytes",
    "most_kv_tokens",
]

SHARE_BEFORE_CAPTURE: Final = {"cpu": 0.5, "cuda": 0.85}
"""Of what is free; the rest is for activations, graphs and neighbours."""
SHARE_AFTER_CAPTURE: Final = {"cpu": 0.5, "cuda": 0.95}
"""Graphs and the largest step have taken theirs; the rest is for what fragments, and for neighbours."""
SHARE_IF_ASKED: Final = {"cpu": 0.5, "cuda": 0.99}
"""After capture, if the number of tokens was asked for: whoever asks has left room for neighbours."""


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on ``device`` now (host memory for a CPU)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def check_weights_fit(num_bytes: int, device: torch.device) -> None:
    """Raise `OutOfMemoryError` if weights of ``num_bytes`` exceed what is available."""
    available = available_bytes(device)
    if num_bytes > available:
        raise OutOfMemoryError(
            f"the weights need {_gib(num_bytes)} and {device} has {_gib(available)} available",
            fix="use a smaller model, dtype='bfloat16' (half of float32), or a device with more memory",
        )


def check_budget_holds_weights(footprint: Footprint, config: EngineConfig, budget_bytes: int) -> None:
    """Raise `OutOfMemoryError` if the weights alone exceed ``budget_bytes``; it says what is known to be needed.

    Args:
        footprint: of the model, in its dtype.
        config: resolved.
    """
    num_bytes = footprint.weight_bytes
    if num_bytes <= budget_bytes:
        return
    pages = pages_for_tokens(num_tokens=config.kv_tokens or config.max_model_len or 1, page_size=config.page_size)
    least = num_bytes + pages * config.page_size * footprint.kv_token.num_bytes
    raise OutOfMemoryError(
        f"the weights alone need {num_bytes / 2**20:,.1f} MiB, and the budget is {budget_bytes / 2**20:,.1f} MiB",
        fix=f"raise the budget above {-(-least // 2**20):,} MiB, which weights and the KV cache of "
        f"{'kv_tokens' if config.kv_tokens else 'one request'} take: sampling state, buffers and graphs come on top; "
        "or use a smaller model or dtype",
    )


def kv_budget_bytes(device: torch.device, share: float) -> int:
    """Bytes that the cache may take, if it gets ``share`` of what is free now."""
    return int(available_bytes(device) * share)


def asked_kv_tokens(config: EngineConfig, *, budget_bytes: int, token_bytes: int) -> int:
    """``config.kv_tokens`` in whole pages.

    Args:
        config: resolved.
        budget_bytes: for the cache, the null page included.
        token_bytes: of all layers.

    Raises:
        OutOfMemoryError: they do not fit.
    """
    assert config.kv_tokens is not None, "asked for"
    wanted = pages_for(config.kv_tokens, config.page_size) * config.page_size
    fitting = _fitting_tokens(config, budget_bytes, token_bytes)
    if wanted > fitting:
        raise _does_not_fit(wanted, fitting, token_bytes, fix="lower kv_tokens")
    return wanted


def most_kv_tokens(config: EngineConfig, *, budget_bytes: int, token_bytes: int) -> int:
    """As many as fit, but no more than ``max_num_reqs`` requests of ``max_model_len`` can use.

    Args:
        config: resolved.
        budget_bytes: for the cache, the null page included.
        token_bytes: of all layers.

    Raises:
        OutOfMemoryError: one request of ``max_model_len`` does not fit.
    """
    assert config.max_num_reqs is not None and config.max_model_len is not None, "the config is resolved"
    longest = pages_for(config.max_model_len, config.page_size) * config.page_size
    fitting = _fitting_tokens(config, budget_bytes, token_bytes)
    if longest > fitting:
        raise _does_not_fit(longest, fitting, token_bytes, fix="lower max_model_len, or set kv_tokens")
    return min(longest * config.max_num_reqs, fitting)


def _fitting_tokens(config: EngineConfig, budget_bytes: int, token_bytes: int) -> int:
    pages = how_many_pages(budget_bytes=budget_bytes, page_size=config.page_size, token_bytes=token_bytes)
    return (pages - 1) * config.page_size  # one page is the null page


def _does_not_fit(wanted: int, fitting: int, token_bytes: int, *, fix: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"a KV cache of {wanted} tokens needs {_gib(wanted * token_bytes)}, and {max(fitting, 0)} tokens fit",
        fix=f"{fix}: each 1,000 tokens take {1000 * token_bytes / 2**20:.1f} MiB",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
