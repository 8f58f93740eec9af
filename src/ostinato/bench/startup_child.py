"""The process that ``startup`` starts: loads an engine, answers once, and prints when each stage ended.

``python -m ostinato.bench.startup_child`` reads one JSON object from standard input (engine settings, a prompt) and
prints one. Times are of the system's monotonic clock, which parent and child share. Imports nothing heavy before
its first line has run.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ostinato.engine.before_torch import head_start

__all__ = ["main"]


class _Stages:
    """A `ProgressReporter` that remembers how long each piece of work took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._label, self._began = "", 0.0

    def start(self, label: str, total: int | None, unit: str) -> None:
        self._label, self._began = label, time.monotonic()

    def advance(self, n: int) -> None:
        """Nothing to keep."""

    def finish(self) -> None:
        self.seconds[self._label] = self.seconds.get(self._label, 0.0) + time.monotonic() - self._began


def main() -> None:
    """Print ``{"began", "imported", "loaded", "answered", "prepare_seconds", "capture_seconds", "graphs"}``.

    Between "imported" and "loaded" lies all of `LLM`: it returns when all weights are there, and what it prepares
    meanwhile, a made-up step among it, lies there too.
    """
    began = time.monotonic()
    asked: dict[str, Any] = json.load(sys.stdin)
    head_start(asked["settings"]["device"])  # as `ostinato generate` does
    from ostinato import LLM, SamplingParams

    imported = time.monotonic()
    stages = _Stages()
    for name in ("decode_sizes", "token_sizes"):  # JSON has no tuples
        if isinstance(asked["settings"].get(name), list):
            asked["settings"][name] = tuple(asked["settings"][name])
    with LLM(progress=stages, **asked["settings"]) as llm:
        loaded = time.monotonic()
        (answer,) = llm.generate([asked["prompt"]], SamplingParams(max_tokens=1, ignore_eos=True))
        if answer.error is not None:  # a refusal is no first token
            raise answer.error
        answered = time.monotonic()
        stats = llm.stats()
        found = {
            "began": began,
            "imported": imported,
            "loaded": loaded,
            "answered": answered,
            "prepare_seconds": stages.seconds.get("warm-up and capture", 0.0),
            "capture_seconds": stats["graphs"]["capture_seconds"],
            "graphs": stats["graphs"],
            "config": stats["config"],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
