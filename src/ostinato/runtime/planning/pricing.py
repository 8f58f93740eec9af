"""What graphs cost beside padding: how many a budget of memory and capture time allows, and which kind of step gets
them. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ostinato.errors import ConfigError

__all__ = ["GraphPrice", "affordable_graphs", "shared_out"]

_MOST: Final = 1e12
"""Of anything here: what is multiplied stays a number."""


@dataclass(frozen=True, kw_only=True)
class GraphPrice:
    """Of one graph. The defaults are of a 1B model on an H200: 81 graphs in 1.9 s, a pool of 154 MiB.

    Attributes:
        mib: memory that one more graph holds, pool and executable, in MiB.
        capture_seconds: time to capture it.
        kv_bytes_per_token: of the model, to say how many KV tokens the memory would have held; 0: not said.
    """

    mib: float = 2.0
    capture_seconds: float = 0.025
    kv_bytes_per_token: int = 0

    def __post_init__(self) -> None:
        for value, unit, does in ((self.mib, "MiB", "hold"), (self.capture_seconds, "seconds", "take")):
            if not 0 < value <= _MOST:
                fix = f"use a number of {unit} above 0, to {_MOST:g}"
                raise ConfigError(f"a graph cannot {does} {value:g} {unit}", fix=fix)
        if not 0 <= self.kv_bytes_per_token <= _MOST:
            raise ConfigError(
                f"kv_bytes_per_token is {self.kv_bytes_per_token}", fix=f"use 0 (not known) or more, to {_MOST:g}"
            )

    def kv_tokens(self, num_graphs: int) -> int | None:
        """KV tokens that the memory of so many graphs would have held."""
        return None if not self.kv_bytes_per_token else int(num_graphs * self.mib * 2**20 // self.kv_bytes_per_token)

    def told(self, num_graphs: int) -> dict[str, Any]:
        """``{"memory_mib", "capture_seconds", "kv_tokens_lost"}`` of so many graphs."""
        return {
            "memory_mib": round(num_graphs * self.mib, 1),
            "capture_seconds": round(num_graphs * self.capture_seconds, 2),
            "kv_tokens_lost": self.kv_tokens(num_graphs),
        }


def affordable_graphs(
    price: GraphPrice,
    *,
    max_graphs: int,
    memory_budget_mib: float | None,
    capture_seconds: float | None,
    num_kinds: int = 1,
) -> int:
    """Graphs that all budgets allow, those of all kinds of step together.

    Args:
        max_graphs: of each kind.
        memory_budget_mib: for all of them.
        capture_seconds: to capture all of them.
        num_kinds: kinds of step, each of which needs a graph.

    Raises:
        ConfigError: a budget is not positive, or does not allow each kind a graph; it says which and what that needs.
    """
    if max_graphs > _MOST:
        raise ConfigError(f"max_graphs is {max_graphs}", fix=f"use 1 to {_MOST:g}", field="max_graphs")
    if max_graphs < 1:
        raise ConfigError(f"max_graphs of {max_graphs} allows no graph", fix="one graph needs 1", field="max_graphs")
    allowed = max_graphs * num_kinds
    for name, budget, each in (
        ("memory_budget_mib", memory_budget_mib, price.mib),
        ("capture_seconds", capture_seconds, price.capture_seconds),
    ):
        if budget is None:
            continue
        if not budget >= each:  # not a number is none either
            raise ConfigError(f"{name} of {budget:g} allows no graph", fix=f"one graph needs {each:g}", field=name)
        if budget < each * num_kinds:
            raise ConfigError(
                f"{name} of {budget:g} allows fewer graphs than there are kinds of step",
                fix=f"one graph of each of {num_kinds} kinds needs {each * num_kinds:g}",
                field=name,
            )
        allowed = int(min(allowed, budget / each))
    return allowed


def shared_out(costs: Mapping[str, Sequence[float]], allowed: int) -> dict[str, int]:
    """Graphs for each kind of step, ``allowed`` in all, so that all steps together cost least. Exact.

    With two kinds there are as many ways to share as graphs, and all are compared: gains need not fall with each graph.

    Args:
        costs: kind -> cost of its steps with 1, 2, ... graphs, falling, in one unit; one kind or two.
        allowed: at least one for each kind.
    """
    first, *others = costs
    if not others:
        return {first: min(allowed, len(costs[first]))}
    (second,) = others

    def rest(num_first: int) -> int:
        return min(allowed - num_first, len(costs[second]))

    num_first = min(
        range(1, min(allowed - 1, len(costs[first])) + 1),
        key=lambda n: (costs[first][n - 1] + costs[second][rest(n) - 1], n),
    )
    return {first: num_first, second: rest(num_first)}
