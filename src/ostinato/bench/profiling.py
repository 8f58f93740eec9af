"""The profiler's pass over rows that are measured already: engines are opened again, once all clean times are taken.

A profiler may go on slowing launches down after it has ended, so it comes last in a run, after all modes and peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ostinato.bench.clock import device_busy
from ostinato.bench.run import Run

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["IDLE_NOTE", "idle_percent", "profile_rows", "profiled_step"]

IDLE_NOTE: Final = (
    "idle_percent: 1 - device_ms / {measured}; work outside of the graph counts as idle. Where device_ms is a replay "
    "of the graph alone, gaps between its kernels count as busy, so it is no bound on either side, and a replay that "
    "took longer than the engine's step (another clock, another moment) stands as 0. busy_ms has the kernels' own time"
)
"""Of `idle_percent`, to be formatted with the column that was measured."""


def profile_rows(
    run: Run, modes: Iterable[str], settings: dict[str, Any], measure: Callable[[LLM, dict[str, Any]], dict[str, Any]]
) -> None:
    """Add what ``measure(engine, row)`` gives to each row of ``modes``; nothing without CUDA, or if declined."""
    if not run.is_cuda or run.config.is_profiled is False:
        return
    for mode in modes:
        rows = [row for row in run.evidence.rows if row["mode"] == mode]
        if not rows:
            continue
        with run.variant(f"{mode} profile"), run.engine(mode, mode=mode, **settings) as llm:
            for row in rows:
                row |= measure(llm, row)
        run.evidence.save()


def profiled_step(
    run: Run, few: Callable[[], Any], more: Callable[[], Any] | None = None, *, num_steps: int = 1
) -> dict[str, Any]:
    """``busy_ms`` and ``kernels`` of a step: those of ``more`` beyond ``few``, by steps; or those of ``few`` alone."""
    few()  # what is new to the engine happens unseen
    busy_ms, num_kernels = device_busy(few, run.target.device)
    if more is not None:
        longer_ms, longer_kernels = device_busy(more, run.target.device)
        busy_ms, num_kernels = longer_ms - busy_ms, longer_kernels - num_kernels
    return {"busy_ms": round(busy_ms / num_steps, 4), "kernels": round(num_kernels / num_steps, 1)}


def idle_percent(device_ms: float | None, measured_ms: float) -> float | None:
    """The share of the measured time that ``device_ms`` leaves, or None where it is unknown; `IDLE_NOTE`."""
    return None if device_ms is None else round(max(0.0, 100 * (1 - device_ms / measured_ms)), 1)
