"""What the last start of the same engine learned, for the next one: a file beside the engine, not a cache of graphs.

Which keys were captured and what each took, which failed or were quarantined, and the traffic that was served. The next
start leaves out what went wrong, reserves memory for graphs that it captures late, and captures in the order of that
traffic. It holds for one device, model, version and configuration; one that was written by another is not used, and
replaced. Called by `LLM`.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ostinato._whole_file import replace_file
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.origin import origin_of
from ostinato.engine.execution.reload import EngineWeights
from ostinato.errors import ConfigError
from ostinato.runtime import GraphKey, Reason, TrafficHistogram

__all__ = ["CaptureManifest", "KeyVerdict", "Verdict"]

_BLOCKED = {Reason.CAPTURE_FAILED: "failed", Reason.QUARANTINED: "quarantined"}


class Verdict(StrEnum):
    """How a key did."""

    CAPTURED = "captured"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    PENDING = "pending"
    """It was not captured by the time."""


@dataclass(frozen=True, kw_only=True)
class KeyVerdict:
    """What is known of one key; bytes and seconds as in `runtime.CaptureCost`."""

    verdict: Verdict
    pool_bytes: int = 0
    driver_bytes: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class CaptureManifest:
    """The contents of the file.

    Attributes:
        origin: what it holds for, by name; see `origin_of`.
        keys: by the key's text.
        kv_tokens: that fitted beside the graphs.
        traffic: steps that were served; None if there were none.
    """

    origin: dict[str, str]
    keys: dict[str, KeyVerdict] = field(default_factory=dict)
    kv_tokens: int = 0
    traffic: TrafficHistogram | None = None

    @classmethod
    def open(cls, loaded: LoadedModel) -> tuple[CaptureManifest, str]:
        """That of the file which the config of ``loaded`` names, or an empty one; and why it is empty, if it is.

        Raises:
            ConfigError: the file cannot be read, is no manifest, or could not be written.
        """
        assert loaded.config.manifest is not None, "asked for"
        path, empty = Path(loaded.config.manifest), cls(origin=origin_of(loaded))
        if not path.exists():
            if not path.parent.is_dir() or path.is_dir():
                raise ConfigError(f"{path} cannot be written", fix="name a file in a folder that there is")
            return empty, "there is none yet"
        found = cls._read(path)
        for fact in {**empty.origin, **found.origin}:
            here, there = empty.origin.get(fact, "unknown"), found.origin.get(fact, "unknown")
            if here != there:
                return empty, f"it is stale: {fact} was {there}, and is {here}"
        return found, ""

    def graph_bytes(self, keys: Iterable[GraphKey]) -> int:
        """What the graphs of ``keys`` took; 0 if one of them was never captured: a part would pass for the whole."""
        total = 0
        for key in keys:
            known = self.keys.get(str(key), KeyVerdict(verdict=Verdict.PENDING))
            num_bytes = known.pool_bytes + known.driver_bytes
            if known.verdict is Verdict.PENDING and not num_bytes:
                return 0
            total += num_bytes
        return total

    def left_out(self, keys: list[GraphKey]) -> dict[GraphKey, Reason]:
        """Those of ``keys`` that need not be tried, and why."""
        reasons = {Verdict.FAILED: Reason.CAPTURE_FAILED, Verdict.QUARANTINED: Reason.QUARANTINED}
        known = {key: self.keys[str(key)].verdict for key in keys if str(key) in self.keys}
        return {key: reasons[verdict] for key, verdict in known.items() if verdict in reasons}

    def learn(self, captures: Captures, weights: EngineWeights) -> None:
        """Take in how the keys of an executor stand, what they have taken, and what it has served; it is of the
        ``weights`` that serve now, which may have been reloaded."""
        self.origin |= {"model": weights.source, "weights": weights.weights_id}
        graphed, costs = captures.executor.graphed, captures.costs
        for key in graphed.keys:
            why = graphed.why_blocked(key)
            verdict = Verdict(_BLOCKED.get(why, "pending")) if why is not None else Verdict.CAPTURED
            cost = costs.get(key)
            known = self.keys.get(str(key), KeyVerdict(verdict=verdict))
            self.keys[str(key)] = KeyVerdict(
                verdict=verdict,
                pool_bytes=known.pool_bytes if cost is None else cost.pool_bytes,
                driver_bytes=known.driver_bytes if cost is None else cost.driver_bytes,
                seconds=known.seconds if cost is None else round(cost.seconds, 4),
            )
        self.kv_tokens = captures.executor.kv_tokens
        counters = graphed.counters
        if counters.decode_sizes or counters.mixed_sizes:
            self.traffic = TrafficHistogram(decode=dict(counters.decode_sizes), mixed=dict(counters.mixed_sizes))

    def save(self, path: Path) -> None:
        """Write the file, whole.

        Raises:
            ConfigError: it cannot be written.
        """
        document = {
            "origin": self.origin,
            "date": datetime.date.today().isoformat(),
            "kv_tokens": self.kv_tokens,
            "keys": {name: dataclasses.asdict(key) for name, key in self.keys.items()},
            "traffic": None if self.traffic is None else self.traffic.to_dict(),
        }
        try:
            replace_file(path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}", fix="name a file that can be written") from error

    @classmethod
    def _read(cls, path: Path) -> CaptureManifest:
        try:
            document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
            return cls(
                origin=dict(document["origin"]),
                keys={name: _verdict(entry) for name, entry in document["keys"].items()},
                kv_tokens=int(document["kv_tokens"]),
                traffic=None if document["traffic"] is None else TrafficHistogram.from_dict(document["traffic"]),
            )
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}", fix="name a readable file") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ConfigError(f"{path} is no manifest: {error}", fix="name another file, or remove it") from error


def _verdict(entry: Mapping[str, Any]) -> KeyVerdict:
    return KeyVerdict(
        verdict=Verdict(entry["verdict"]),
        pool_bytes=int(entry["pool_bytes"]),
        driver_bytes=int(entry["driver_bytes"]),
        seconds=float(entry.get("seconds", 0.0)),  # older files, which are stale, have none
    )
