"""`Runner`: one way to turn a callable into a captured plan. Implementations: `full`, `breakable`, `piecewise`.

`Call` is what runners execute: the wrapped callable already bound to the static inputs of one key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.runners.plan import CapturedPlan

__all__ = ["BoundCall", "Call", "Runner"]

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class BoundCall:
    """The `Call` that the facade makes; a runner that traces looks inside."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.fn(*self.args, **self.kwargs)


class Runner(Protocol):
    """Captures keys of one runtime mode."""

    runtime_mode: RuntimeMode

    def warm_up(self, key: GraphKey, call: Call) -> Any:
        """Run ``call`` eagerly where it will be captured, and learn what its breaks hand over."""
        ...

    def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
        """Record ``call``. All or nothing: on an error no graph is left behind and the error is raised."""
        ...
