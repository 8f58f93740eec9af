"""`ShadowTurns`: when the step that a shadow has kept runs eagerly, and is compared.

The eager run writes the rows of the cache that its step wrote, and puts them back; later steps of the same requests
read them. So it cannot run beside a step, only between two, and there it takes a share of the time at most
(`TimeShare`), after all tokens that are computed were delivered. It comes to its turn under constant load too: the time
that it may take grows whether or not steps that were kept are dropped. Called by `SpareTime`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.time_share import TimeShare

__all__ = ["ShadowTurns"]

_FIRST_GUESS_SECONDS: Final = 0.02  # of an eager step and its comparison, before one was timed


class ShadowTurns:
    """Finishes the shadows of an executor.

    Args:
        executor: keeps steps.
        share: of the time since serving began that eager runs may have taken while requests run.
        clock: seconds; the one of deadlines.
    """

    def __init__(self, executor: Executor, *, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._clock = clock
        self._time = TimeShare(share, first_guess_seconds=_FIRST_GUESS_SECONDS, clock=clock)

    @property
    def is_waiting(self) -> bool:
        """Whether a step was kept and not compared yet."""
        return self._executor.graphed.shadow_key is not None

    @property
    def expected_seconds(self) -> float:
        """What the next turn may take."""
        return self._time.expected_seconds

    def is_due(self, *, is_idle: bool, earliest_deadline: float) -> bool:
        """Whether to compare the kept step now. Arguments: see `TimeShare.allows`."""
        return self._time.allows(is_idle=is_idle, earliest_deadline=earliest_deadline) and self.is_waiting

    def run(self, *, is_idle: bool) -> None:
        """Compare the kept step; no step may be in flight."""
        began = self._clock()
        self._executor.finish_shadow()
        self._time.spend(self._clock() - began, is_idle=is_idle)

    def to_dict(self) -> dict[str, Any]:
        """``{"compared", "skipped", "dropped", "waiting", "seconds"}``; see `ShadowCounts`."""
        counts = self._executor.graphed.shadow_counts
        return {
            "compared": counts.num_compared,
            "skipped": counts.num_skipped,
            "dropped": counts.num_dropped,
            "waiting": int(self.is_waiting),
            "seconds": round(self._time.seconds, 4),
        }
