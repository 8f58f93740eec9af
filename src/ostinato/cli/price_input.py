"""What a graph costs beside padding: KV bytes from a model's shape, memory and capture time from what was measured.

No weights are loaded. Called by ``ostinato plan``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ostinato.cli.json_input import read_json
from ostinato.errors import ConfigError, UnknownNameError

__all__ = ["kv_bytes_of", "read_graph_price"]

_ELEMENT_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_FIX: Final = "name a manifest (EngineConfig.manifest), or the JSON of `ostinato memory` or `ostinato generate`"


def kv_bytes_of(model: str, *, dtype: str = "auto") -> int:
    """Bytes of the keys and values of one token in all layers of ``model``.

    Args:
        model: as `EngineConfig.model`; its config alone is read.
        dtype: of the cache; "auto" is the checkpoint's own.

    Raises:
        UnknownNameError: no such dtype.
        The errors of `resolve_model` and `ModelConfig.from_hf`.
    """
    if dtype not in ("auto", *_ELEMENT_BYTES):
        raise UnknownNameError.of("dtype", dtype, ["auto", *_ELEMENT_BYTES])
    from ostinato.engine.models import ModelConfig
    from ostinato.engine.models.footprint import footprint_of
    from ostinato.engine.weights import checkpoint_dtype, resolve_model

    files = resolve_model(model, load_format="dummy")
    element_bytes = _ELEMENT_BYTES[checkpoint_dtype(files) if dtype == "auto" else dtype]
    return footprint_of(ModelConfig.from_hf(files.config), element_bytes=element_bytes).kv_token.num_bytes


def read_graph_price(path: Path) -> tuple[float, float | None]:
    """MiB and capture seconds of a graph, in the mean over those that ``path`` tells of; None where no time is told.

    The mean and not the price of one more: the first graph brings most of the pool, and some graph is the first.

    Raises:
        ConfigError: the file cannot be read, is none of the three kinds, or tells of no graph's memory.
    """
    document = read_json(path)
    try:
        if "predicted" in document:
            num_bytes, num_graphs, seconds = _of_forecast(document)
        elif "graphs" in document:
            num_bytes, num_graphs, seconds = _of_engine(document["graphs"])
        else:
            num_bytes, num_graphs, seconds = _of_manifest(document["keys"])
        mib = num_bytes / 2**20
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{path} has no prices of graphs: {type(error).__name__}: {error}", fix=_FIX) from error
    if num_graphs < 1 or num_bytes < 1:
        raise ConfigError(f"{path} has no prices of graphs: it has {num_graphs} graphs of {num_bytes} bytes", fix=_FIX)
    if seconds == math.inf:
        raise ConfigError(f"{path} has no prices of graphs: captures without an end", fix=_FIX)
    return mib / num_graphs, seconds


def _of_forecast(document: Mapping[str, Any]) -> tuple[int, int, float | None]:
    owners = document["measured"] or document["predicted"]
    return int(owners["graph pool"]) + int(owners["executables"]), int(document["graphs"]), None


def _of_engine(graphs: Mapping[str, Any]) -> tuple[int, int, float | None]:
    num_bytes, num_graphs = int(graphs["pool_bytes"]) + int(graphs["executables"]["bytes"]), int(graphs["count"])
    seconds = float(graphs["capture_seconds"])
    return num_bytes, num_graphs, seconds / num_graphs if num_graphs and seconds > 0 else None


def _of_manifest(keys: Mapping[str, Any]) -> tuple[int, int, float | None]:
    captured = [key for key in keys.values() if key["verdict"] == "captured"]
    times = [float(key["seconds"]) for key in captured if key.get("seconds", 0) > 0]  # older manifests have none
    num_bytes = sum(int(key["pool_bytes"]) + int(key["driver_bytes"]) for key in captured)
    return num_bytes, len(captured), sum(times) / len(times) if times else None
