"""What graphs that are not captured yet will take, from a few that are: the first, and what each more costs. Pure.

Graphs are captured largest first into one pool, so that the first one brings the memory in which the later ones find
room; each of these adds little: its outputs, and what did not fit into a gap. The driver keeps an executable of each
beside the pool. Hence a first cost, and a straight line in tokens through the later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostinato.errors import ConfigError

__all__ = ["CaptureCost", "GraphGrowth"]

_FEWEST = 3  # a line needs two, and the first capture lies on none


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureCost:
    """What one capture has taken of the device.

    Attributes:
        num_tokens: of its key.
        pool_bytes: that the allocator had to add.
        driver_bytes: that left the device beside the allocator: the executable, and kernels loaded for it.
    """

    num_tokens: int
    pool_bytes: int
    driver_bytes: int


@dataclass(frozen=True, kw_only=True)
class GraphGrowth:
    """Two lines through measured captures, in bytes and bytes a token, and what has been taken already."""

    taken_pool_bytes: int
    taken_driver_bytes: int
    pool_line: tuple[float, float]
    driver_line: tuple[float, float]

    @classmethod
    def fit(cls, costs: Sequence[CaptureCost]) -> GraphGrowth:
        """Fit to ``costs``, in the order of capture.

        Raises:
            ConfigError: fewer than three.
        """
        if len(costs) < _FEWEST:
            raise ConfigError(
                f"{len(costs)} sample captures", fix=f"capture at least {_FEWEST}: the first is unlike the others"
            )
        later = costs[1:]
        sizes = [float(cost.num_tokens) for cost in later]
        return cls(
            taken_pool_bytes=sum(cost.pool_bytes for cost in costs),
            taken_driver_bytes=sum(cost.driver_bytes for cost in costs),
            pool_line=_line(sizes, [float(cost.pool_bytes) for cost in later]),
            driver_line=_line(sizes, [float(cost.driver_bytes) for cost in later]),
        )

    def predict(self, num_tokens: Iterable[int]) -> tuple[int, int]:
        """Bytes of pool and driver once keys of these sizes are captured too, with what is taken already."""
        more = list(num_tokens)
        pool = self.taken_pool_bytes + sum(_at(self.pool_line, size) for size in more)
        executables = self.taken_driver_bytes + sum(_at(self.driver_line, size) for size in more)
        return round(pool), round(executables)


def _line(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope by least squares; level where a negative slope would say that more tokens take less."""
    mean_size, mean = sum(sizes) / len(sizes), sum(values) / len(values)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((s - mean_size) * (v - mean) for s, v in zip(sizes, values, strict=True)) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return mean - slope * mean_size, slope


def _at(line: tuple[float, float], size: int) -> float:
    return max(0.0, line[0] + line[1] * size)
