"""How many tokens of KV cache an engine gets, from the memory that is free once the weights are there.

Estimates before allocation; the runtime's ledger measures after. Says which knob gives how much.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.kvcache import bytes_per_token, how_many_pages
from ostinato.engine.models import ModelConfig
from ostinato.engine.paging import pages_for
from ostinato.errors import OutOfMemoryError

__all__ = ["available_bytes", "check_weights_fit", "choose_kv_tokens"]

_KV_SHARE = {"cpu": 0.5, "cuda": 0.85}  # of what is free; the rest is for activations, graphs and neighbours


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


def choose_kv_tokens(config: EngineConfig, model: ModelConfig, *, element_bytes: int, device: torch.device) -> int:
    """Tokens of KV cache, a whole number of pages.

    Args:
        config: resolved; its ``kv_tokens`` is taken if it fits, else as many as the other limits can use.
        element_bytes: of the cache's dtype.

    Raises:
        OutOfMemoryError: what was asked for, or one request of ``max_model_len``, does not fit.
    """
    assert config.max_num_reqs is not None and config.max_model_len is not None, "the config is resolved"
    token_bytes = bytes_per_token(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        element_bytes=element_bytes,
    )
    budget = int(available_bytes(device) * _KV_SHARE[device.type])
    pages = how_many_pages(budget_bytes=budget, page_size=config.page_size, token_bytes=token_bytes)
    fitting = (pages - 1) * config.page_size  # one page is the null page
    if config.kv_tokens is not None:
        wanted = pages_for(config.kv_tokens, config.page_size) * config.page_size
        if wanted > fitting:
            raise _does_not_fit(wanted, fitting, token_bytes, fix="lower kv_tokens")
        return wanted
    longest = pages_for(config.max_model_len, config.page_size) * config.page_size
    if longest > fitting:
        raise _does_not_fit(longest, fitting, token_bytes, fix="lower max_model_len, or set kv_tokens")
    return min(longest * config.max_num_reqs, fitting)


def _does_not_fit(wanted: int, fitting: int, token_bytes: int, *, fix: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"a KV cache of {wanted} tokens needs {_gib(wanted * token_bytes)}, and {max(fitting, 0)} tokens fit",
        fix=f"{fix}: each 1,000 tokens take {1000 * token_bytes / 2**20:.1f} MiB",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
