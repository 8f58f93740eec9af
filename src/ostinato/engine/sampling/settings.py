"""`SettingsTable`: what the op that chooses tokens is told of each request: one row of numbers.

A row is worked out once, when its request enters, and copied at each step; only the random number of the step is
new. A row of zeros is greedy, so padded rows need nothing. Filled by the engine's batch writer, read by
`choose_tokens` and its CUDA kernel.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.engine.request import SamplingParams
from ostinato.engine.sampling.uniforms import seeded_uniforms, stream_of

__all__ = ["NUM_SETTINGS", "Setting", "SettingsTable", "settings_of"]

NUM_SETTINGS: Final = 8

_TEMPERATURES: Final = (1e-6, 1e30)  # beyond, float32 overflows to what is greedy or uniform anyway
_MOST_TOP_K: Final = 2**31  # no vocabulary is as large; any integer is accepted


class Setting(IntEnum):
    """The columns of a row, float64: it holds the random number and any top_k exactly."""

    INVERSE_TEMPERATURE = 0
    """0 for greedy: the likeliest token is taken and the other settings of a draw are not looked at."""
    TOP_K = 1
    """0 keeps all."""
    TOP_P = 2
    MIN_SCORE = 3
    """log(min_p): the smallest score kept, where the largest is 0; -inf keeps all."""
    REPETITION = 4
    PRESENCE = 5
    FREQUENCY = 6
    UNIFORM = 7
    """The random number of this step, in [0, 1)."""


def settings_of(params: SamplingParams) -> tuple[float, ...]:
    """The row of ``params``, its random number left at 0."""
    low, high = _TEMPERATURES
    return (
        0.0 if params.is_greedy else 1.0 / min(max(params.temperature, low), high),
        float(min(params.top_k, _MOST_TOP_K)),
        params.top_p,
        math.log(params.min_p) if params.min_p > 0 else -math.inf,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        0.0,
    )


class SettingsTable:
    """Rows of the requests in progress.

    Args:
        num_rows: how many requests it holds.
        generator: CPU generator for requests without a seed; None is torch's default one.
    """

    def __init__(self, num_rows: int, generator: torch.Generator | None) -> None:
        self._values = np.zeros((num_rows, NUM_SETTINGS))
        self._streams = np.zeros(num_rows, dtype=np.uint64)
        self._is_seeded = np.zeros(num_rows, dtype=np.bool_)
        self._is_random = np.zeros(num_rows, dtype=np.bool_)
        self._generator = generator

    def enter(self, row: int, params: SamplingParams) -> None:
        """``row`` belongs to a request with ``params`` from now on."""
        self._values[row] = settings_of(params)
        self._is_random[row] = not params.is_greedy
        self._is_seeded[row] = params.seed is not None
        self._streams[row] = 0 if params.seed is None else stream_of(params.seed)

    def fill(self, target: NDArray[Any], at: NDArray[Any], rows: NDArray[Any], positions: NDArray[Any]) -> None:
        """Write requests' settings with the random numbers of this step; ``target[at[i]]`` is that of ``rows[i]``.

        Args:
            target: [any, NUM_SETTINGS] float64.
            at: [num] rows of ``target``.
            rows: [num] rows of this table.
            positions: [num] output position of the token that is chosen.
        """
        values = self._values[rows]
        is_random, is_seeded = self._is_random[rows], self._is_seeded[rows]
        seeded = np.flatnonzero(is_random & is_seeded)
        if seeded.size:
            values[seeded, Setting.UNIFORM] = seeded_uniforms(self._streams[rows[seeded]], positions[seeded])
        unseeded = np.flatnonzero(is_random & ~is_seeded)
        if unseeded.size:
            drawn = torch.rand(unseeded.size, dtype=torch.float64, generator=self._generator)
            values[unseeded, Setting.UNIFORM] = drawn.numpy()
        target[at] = values
