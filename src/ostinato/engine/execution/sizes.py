"""Which buckets and KV tiers an engine captures when the user named none. Pure arithmetic.

On a GPU a graph is cheap and padding costs little, so ladders are dense (the runtime's defaults). On a CPU
simulated graphs cost compute at capture, and a wide block table costs compute at every step; so there
ladders are sparse and decode has a tier for short contexts.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_CAPTURED_TOKENS", "decode_sizes_for", "kv_tiers_for", "token_sizes_for"]

MAX_CAPTURED_TOKENS: Final = 2048
"""Where the default ladder of mixed steps ends. On an H200 a step of 4,096 tokens gains 4 % by its graph, for which a
1B model's pool would hold 0.3 GiB more."""


def token_sizes_for(device_type: str, max_num_batched_tokens: int) -> tuple[int, ...] | None:
    """Token buckets of mixed steps; None leaves the ladder to the runtime."""
    return _doubling(16, max_num_batched_tokens) if device_type == "cpu" else None


def decode_sizes_for(device_type: str, max_num_reqs: int) -> tuple[int, ...] | None:
    """Request buckets of decode; None leaves the ladder to the runtime."""
    return _doubling(1, max_num_reqs) if device_type == "cpu" else None


def kv_tiers_for(attention: str, max_model_len: int) -> tuple[int, ...] | None:
    """Context lengths with decode graphs of their own; None where attention's cost follows the live context.

    Torch attention gathers as many pages as the block table is wide, live or not.
    """
    if attention != "torch":
        return None
    return tuple(sorted({min(256, max_model_len), max_model_len}))


def _doubling(first: int, largest: int) -> tuple[int, ...]:
    sizes = []
    size = first
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)
