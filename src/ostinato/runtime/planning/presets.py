"""The default ladders of other engines, to compare a plan with, or to capture. Pure arithmetic on published defaults
(November 2026).

vLLM: 1, 2, 4, then every 8 up to 256, for decode; every 16 above, mixed steps to 512 tokens. SGLang: 1, 2, 4, 8, 12,
then every 8, for decode; mixed steps from 4 tokens on, in steps of 4, 16, 32, 64 and 256. TensorRT-LLM: 1, 2, 4, every
8 to 128, then 192 and 256; it captures decode alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from ostinato.errors import UnknownNameError

__all__ = ["PRESETS", "preset_ladder", "preset_within"]

_VLLM_DECODE: Final = (1, 2, 4, *range(8, 257, 8))
_LADDERS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "vllm": {"decode": _VLLM_DECODE, "mixed": (*_VLLM_DECODE, *range(272, 513, 16))},
    "sglang": {
        "decode": (1, 2, 4, 8, 12, *range(16, 257, 8)),
        "mixed": (
            *range(4, 33, 4),
            *range(48, 257, 16),
            *range(288, 513, 32),
            *range(576, 1025, 64),
            *range(1280, 8193, 256),
        ),
    },
    "tensorrt-llm": {"decode": (1, 2, 4, *range(8, 129, 8), 192, 256), "mixed": ()},
}
PRESETS: Final = tuple(_LADDERS)


def preset_ladder(name: str, kind: str, *, largest: int) -> tuple[int, ...]:
    """Sizes that engine ``name`` captures for "decode" or "mixed" steps, up to the first that holds ``largest``.

    Raises:
        UnknownNameError: no such preset.
    """
    ladder = _ladder(name, kind)
    return ladder[: bisect_left(ladder, largest) + 1]


def preset_within(name: str, kind: str, *, limit: int) -> tuple[int, ...]:
    """The same sizes for steps of up to ``limit``, the last one where the ladder goes that far; else it ends as theirs.

    Raises:
        UnknownNameError: no such preset, or it has no sizes of that kind.
    """
    ladder = _ladder(name, kind)
    if not ladder:
        raise UnknownNameError.of(f"ladder of {kind} steps", name, [n for n in PRESETS if _LADDERS[n][kind]])
    below = ladder[: bisect_left(ladder, limit)]
    return (*below, limit) if len(below) < len(ladder) else below


def _ladder(name: str, kind: str) -> tuple[int, ...]:
    if name not in _LADDERS:
        raise UnknownNameError.of("ladder", name, list(PRESETS))
    return _LADDERS[name][kind]
