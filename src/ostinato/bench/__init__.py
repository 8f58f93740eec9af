"""Benchmarks: load, measuring, and evidence files. Public names are resolved on first use; no torch until a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato._lazy import lazy_names

if TYPE_CHECKING:
    from ostinato.bench.config import BenchConfig
    from ostinato.bench.evidence import Evidence
    from ostinato.bench.scenario import SCENARIOS, run_bench

__all__ = ["SCENARIOS", "BenchConfig", "Evidence", "run_bench"]

_HOMES = {
    "SCENARIOS": "ostinato.bench.scenario",
    "BenchConfig": "ostinato.bench.config",
    "Evidence": "ostinato.bench.evidence",
    "run_bench": "ostinato.bench.scenario",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
