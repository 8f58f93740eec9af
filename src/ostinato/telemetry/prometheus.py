"""`PrometheusSink`: the counters as Prometheus metrics, and `read_metrics`, which reads them back from an endpoint.

Nothing is done per step beyond counting: the metrics are made from the counters when somebody asks for them. The
only file that needs `prometheus_client` (extra `metrics`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ostinato.errors import ClosedError, ConfigError
from ostinato.telemetry.counters import KEY_STATES, DispatchCounters
from ostinato.telemetry.events import Event
from ostinato.telemetry.failures import FailureCounters
from ostinato.telemetry.tally import Tally

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["PrometheusSink", "read_metrics"]

_LABELS: Final = ("runtime_mode", "bucket", "reason")
_ROWS: Final = {  # field of a row of the dispatch table -> metric, what it counts
    "hits": ("ostinato_steps", "Steps."),
    "live_tokens": ("ostinato_live_tokens", "Rows that were asked for."),
    "padded_tokens": ("ostinato_padded_tokens", "Rows computed for nobody: bucket size minus live size."),
    "launch_seconds": ("ostinato_launch_seconds", "Host time of replays and eager runs."),
    "step_seconds": ("ostinato_step_seconds", "Wall time that steps held the engine."),
}
_FAILURES: Final = {  # field of FailureCounters -> metric, what it counts
    "preemptions": ("ostinato_preemptions", "Requests that gave up their pages."),
    "failed_steps": ("ostinato_failed_steps", "Steps that failed."),
    "failed_requests": ("ostinato_failed_requests", "Requests that ended with a failed step or with the engine."),
    "failed_captures": ("ostinato_failed_captures", "Keys whose capture failed."),
    "quarantines": ("ostinato_quarantines", "Keys found to differ from eager."),
    "failed_receivers": ("ostinato_failed_receivers", "Requests aborted because their receiver raised."),
    "engine_deaths": ("ostinato_engine_deaths", "Engines that could not go on."),
    "ceiling_warnings": ("ostinato_ceiling_warnings", "Times that the load sat above the largest bucket."),
}
_KEY_HITS: Final = "ostinato_key_hits"
_KEYS: Final = "ostinato_keys"
_NEVER_HIT: Final = "ostinato_never_hit_keys"


class PrometheusSink:
    """Counts events, and is a collector of a Prometheus registry.

    Args:
        registry: where it is registered; by default one of its own, found under `registry`.

    Raises:
        ConfigError: `prometheus_client` is not installed, or the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        client = _client()
        self._tally = Tally()
        self._server: Any = None
        self._is_closed = False
        self._lock = threading.Lock()
        self.registry = client.CollectorRegistry() if registry is None else registry
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigError(
                f"the registry has these metrics already: {error}", fix="give each PrometheusSink a registry of its own"
            ) from error

    def emit(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            self._tally.emit(event)

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; a registry calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            told = self._tally.snapshot()
        dispatch = told["dispatch"]
        for field, (name, text) in _ROWS.items():
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for row in dispatch["buckets"]:
                counter.add_metric([row[label] for label in _LABELS], row[field])
            yield counter
        hits = CounterMetricFamily(_KEY_HITS, "Steps that replayed a key.", labels=["key"])
        for key, count in {**dict.fromkeys(dispatch["never_hit"], 0), **dispatch["key_hits"]}.items():
            hits.add_metric([key], count)
        yield hits
        states = GaugeMetricFamily(_KEYS, "Planned keys by state.", labels=["state"])
        for state, count in dispatch["keys"].items():
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily(_NEVER_HIT, "Planned keys that no step has replayed.", len(dispatch["never_hit"]))
        for field, (name, text) in _FAILURES.items():
            yield CounterMetricFamily(name, text, told["failures"][field])

    def serve(self, port: int, *, address: str = "127.0.0.1") -> int:
        """Answer ``http://address:port/metrics`` from a thread until `close`; the port, chosen freely for 0.

        Raises:
            ConfigError: the port cannot be had, or it serves already.
            ClosedError: it was closed.
        """
        if self._is_closed:
            raise ClosedError("this sink was closed", fix="make a new one")
        if self._server is not None:
            raise ConfigError("the metrics are served already", fix="close() the sink before it serves elsewhere")
        try:
            self._server, _ = _client().start_http_server(port, address, self.registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} of {address} cannot be had: {error}", fix="choose a free port, or 0 for any"
            ) from error
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving and leave the registry. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.registry.unregister(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_metrics(text: str, *, name: str = "the endpoint") -> dict[str, Any]:
    """What a `PrometheusSink` tells, in the form of `Tally.snapshot`, without the histogram: it is no metric.

    Args:
        text: in the exposition format, of any number of programs.
        name: of the source, for messages.

    Raises:
        ConfigError: it is no exposition, or has no metrics of Ostinato; `prometheus_client` is not installed.
    """
    _client()
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except ValueError as error:
        raise ConfigError(f"{name} gives no metrics: {error}", fix="name the address of a /metrics page") from error
    if _ROWS["hits"][0] not in families:
        raise ConfigError(
            f"{name} has no metrics of Ostinato", fix="serve them with ostinato.telemetry.PrometheusSink().serve(port)"
        )

    def samples(family: str) -> list[tuple[dict[str, str], float]]:
        found = families.get(family)
        wanted = (family, f"{family}_total")
        return [(s.labels, s.value) for s in found.samples if s.name in wanted] if found is not None else []

    try:
        return _added_up(samples)
    except (KeyError, ValueError, OverflowError) as error:  # a label that is not there, or no number of steps
        raise ConfigError(
            f"{name} has other metrics than Ostinato's: {type(error).__name__}: {error}",
            fix="name the address of a PrometheusSink",
        ) from error


def _added_up(samples: Callable[[str], list[tuple[dict[str, str], float]]]) -> dict[str, Any]:
    """The form of `Tally.snapshot`, from the samples of a family by its name."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for field, (family, _) in _ROWS.items():
        for labels, value in samples(family):
            row = rows.setdefault(tuple(labels.get(label, "") for label in _LABELS), dict.fromkeys(_ROWS, 0))
            row[field] = value if field.endswith("_seconds") else int(value)
    counters = DispatchCounters()
    counters.add(
        {
            "buckets": [dict(zip(_LABELS, key, strict=True)) | row for key, row in rows.items()],
            "key_hits": {labels["key"]: value for labels, value in samples(_KEY_HITS) if value},
            "histogram": {"decode": {}, "mixed": {}},
        }
    )
    dispatch = counters.snapshot()
    del dispatch["histogram"]
    dispatch["never_hit"] = [labels["key"] for labels, value in samples(_KEY_HITS) if not value]
    dispatch["keys"] = dict.fromkeys(KEY_STATES, 0) | {labels["state"]: int(n) for labels, n in samples(_KEYS)}
    failures = FailureCounters().snapshot()
    for field, (family, _) in _FAILURES.items():
        failures[field] = sum(int(value) for _, value in samples(family))
    return {"dispatch": dispatch, "failures": failures}


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigError(
            "the package 'prometheus_client' is not installed", fix="pip install 'ostinato[metrics]'"
        ) from error
    return prometheus_client
