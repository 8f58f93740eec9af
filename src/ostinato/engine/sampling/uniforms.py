"""The random numbers of seeded requests: one in [0, 1) for each seed and output position.

A number is a function of these two alone: there is no generator state to advance, to lose at a preemption or to
share with a neighbour. It is the SplitMix64 stream of the seed, read at that position (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014). Drawn on the host, so it is the same on every device. Called by
the settings.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["seeded_uniforms", "stream_of"]

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: successive states are far apart
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def stream_of(seed: int) -> int:
    """The start of a seed's stream, in [0, 2**64)."""
    # The seed is mixed first, so that the streams of seeds 0, 1, 2 are not shifts of one another.
    return int(_mixed(np.array([(seed + _GAMMA) & _MASK], dtype=np.uint64))[0])


def seeded_uniforms(streams: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers of streams at output positions, multiples of 2**-53 in [0, 1).

    Args:
        streams: [num] uint64, from `stream_of`.
        positions: [num] integers >= 0.
    """
    states = streams + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)  # arrays wrap around
    return (_mixed(states) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FACTORS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return values ^ (values >> np.uint64(31))
