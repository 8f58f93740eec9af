"""What graphs that are not captured yet will take, from a few that are: the first, and what each more costs. Pure.

Graphs are captured largest first into one pool, so that the first ones bring the memory in which the later ones work;
each of these keeps its outputs there, which follow its tokens. The allocator adds to a pool in pieces of some 20 MiB,
so what a few captures added says little of the next; what they keep is exact. The driver keeps an executable of each
graph beside the pool. Hence what the samples took, and for each kind straight lines in tokens through its later ones.
What later graphs keep may lie in room that the samples left free: a prediction is too high by as much at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostinato.errors import ConfigError

__all__ = ["CaptureCost", "GraphGrowth", "GraphKind"]

_FEWEST = 3  # a line needs two, and the first capture lies on none
GraphKind = str
"""Graphs of one kind hold the same work at other sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureCost:
    """What one capture has taken of the device.

    Attributes:
        kind: of its key.
        num_tokens: of its key.
        pool_bytes: that the allocator had to add.
        live_bytes: that tensors lie in since: the outputs that the graph keeps.
        driver_bytes: that left the device beside the allocator: the executable, and kernels loaded for it.
        seconds: of wall time, warm-up not counted.
    """

    kind: GraphKind
    num_tokens: int
    pool_bytes: int
    live_bytes: int
    driver_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class GraphGrowth:
    """What was taken by the samples, and for each kind two lines through them: (bytes, bytes a token).

    Kinds of which there are fewer than three samples have no lines and can be predicted for no further key.
    """

    pool_bytes: int
    driver_bytes: int
    live_lines: dict[GraphKind, tuple[float, float]]
    driver_lines: dict[GraphKind, tuple[float, float]]

    @classmethod
    def fit(cls, costs: Sequence[CaptureCost]) -> GraphGrowth:
        """Fit to ``costs``, in the order of capture."""
        kinds: dict[GraphKind, list[CaptureCost]] = {}
        for cost in costs:
            kinds.setdefault(cost.kind, []).append(cost)
        later = {kind: found[1:] for kind, found in kinds.items() if len(found) >= _FEWEST}
        return cls(
            pool_bytes=sum(cost.pool_bytes for cost in costs),
            driver_bytes=sum(cost.driver_bytes for cost in costs),
            live_lines={kind: _line([(c.num_tokens, c.live_bytes) for c in found]) for kind, found in later.items()},
            driver_lines={
                kind: _line([(c.num_tokens, c.driver_bytes) for c in found]) for kind, found in later.items()
            },
        )

    def predict(self, more: Iterable[tuple[GraphKind, int]]) -> tuple[int, int]:
        """Bytes of pool and driver once keys of these kinds and tokens are captured too, the samples included.

        Raises:
            ConfigError: a kind of which there are fewer than three samples.
        """
        pool, executables = float(self.pool_bytes), float(self.driver_bytes)
        for kind, num_tokens in more:
            if kind not in self.live_lines:
                raise ConfigError(
                    f"too few sample captures of {kind} graphs",
                    fix=f"capture at least {_FEWEST} of each kind: the first is unlike the others",
                )
            pool += _at(self.live_lines[kind], num_tokens)
            executables += _at(self.driver_lines[kind], num_tokens)
        return round(pool), round(executables)


def _line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Intercept and slope by least squares; level where a negative slope would say that more tokens take less."""
    mean_size, mean = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    slope = sum((size - mean_size) * (value - mean) for size, value in points) / spread if spread else 0.0
    slope = max(slope, 0.0)
    return mean - slope * mean_size, slope


def _at(line: tuple[float, float], size: int) -> float:
    return max(0.0, line[0] + line[1] * size)
