"""One random number in [0, 1) per request and output position.

A seeded request's number is a function of (seed, output position) alone: there is no generator state to
advance, to lose at a preemption or to share with a neighbour. It is the SplitMix64 stream of the seed,
read at that position (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
Drawn on the host, so it is the same on every device. Called by the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from ostinato.engine.request import Request

__all__ = ["seeded_uniform", "uniforms_for"]

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: successive states are far apart


def seeded_uniform(seed: int, position: int) -> float:
    """The number of ``seed`` at output ``position``, a multiple of 2**-53 in [0, 1)."""
    # The seed is mixed first, so that the streams of seeds 0, 1, 2 are not shifts of one another.
    state = _mix((seed + _GAMMA) & _MASK) + (position + 1) * _GAMMA
    return float(_mix(state & _MASK) >> 11) * 2.0**-53


def uniforms_for(requests: Sequence[Request], generator: torch.Generator | None) -> list[float]:
    """One number per request; those without a seed draw from ``generator`` (None: torch's default)."""
    num_unseeded = sum(request.params.seed is None for request in requests)
    shared = iter(torch.rand(num_unseeded, dtype=torch.float64, generator=generator).tolist())
    return [
        next(shared) if request.params.seed is None else seeded_uniform(request.params.seed, request.num_output_tokens)
        for request in requests
    ]


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
