"""Ostinato: CUDA Graphs for live traffic.

The public names, resolved on first use: ``import ostinato`` loads neither torch nor any other
dependency, so command lines start fast and tools may read the version or the errors anywhere.
Everything else is reached through the packages: ``ostinato.runtime``, ``ostinato.engine``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato._lazy import lazy_names
from ostinato._version import __version__
from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from ostinato.engine import LLM, EngineConfig, SamplingParams
    from ostinato.runtime import GraphConfig, Graphed, Slot, break_graph, graph_break

__all__ = [
    "LLM",
    "EngineConfig",
    "GraphConfig",
    "Graphed",
    "OstinatoError",
    "SamplingParams",
    "Slot",
    "__version__",
    "break_graph",
    "graph_break",
]

_HOMES = {
    "EngineConfig": "ostinato.engine",
    "GraphConfig": "ostinato.runtime",
    "Graphed": "ostinato.runtime",
    "LLM": "ostinato.engine",
    "SamplingParams": "ostinato.engine",
    "Slot": "ostinato.runtime",
    "break_graph": "ostinato.runtime",
    "graph_break": "ostinato.runtime",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
