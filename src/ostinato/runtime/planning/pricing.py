"""What graphs cost beside padding: how many a budget of memory and capture time allows. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.errors import ConfigError

__all__ = ["GraphPrice", "affordable_graphs"]


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
        for name in ("mib", "capture_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"a graph of {name} {getattr(self, name):g} cannot be", fix="use a number above 0")
        if self.kv_bytes_per_token < 0:
            raise ConfigError(f"kv_bytes_per_token is {self.kv_bytes_per_token}", fix="use 0 (not known) or more")

    def kv_tokens(self, num_graphs: int) -> int | None:
        """KV tokens that the memory of so many graphs would have held."""
        return None if not self.kv_bytes_per_token else int(num_graphs * self.mib * 2**20 // self.kv_bytes_per_token)


def affordable_graphs(
    price: GraphPrice, *, max_graphs: int, memory_budget_mib: float | None, capture_seconds: float | None
) -> int:
    """Graphs that all budgets allow.

    Raises:
        ConfigError: a budget is not positive, or allows no graph at all; it says which and how much one needs.
    """
    allowed = max_graphs
    for name, budget, each in (
        ("max_graphs", float(max_graphs), 1.0),
        ("memory_budget_mib", memory_budget_mib, price.mib),
        ("capture_seconds", capture_seconds, price.capture_seconds),
    ):
        if budget is None:
            continue
        if not budget >= each:  # not a number is none either
            raise ConfigError(f"{name} of {budget:g} allows no graph", fix=f"one graph needs {each:g}", field=name)
        allowed = int(min(allowed, budget / each))
    return allowed
