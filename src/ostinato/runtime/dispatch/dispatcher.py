"""`Dispatcher`: the key table of one callable, its answers cached, each step reported as an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ostinato.errors import InputSpecError, RuntimeStateError
from ostinato.runtime.dispatch.costs import CostTable
from ostinato.runtime.dispatch.decision import Decision, Reason
from ostinato.runtime.dispatch.policy import KeyTable, choose
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.telemetry import EventBus, KeyQuarantined, KeysPlanned, StepDispatched

__all__ = ["Dispatcher"]

_CACHE_LIMIT = 65_536


class Dispatcher:
    """Answers "which key, and why" for live batches.

    Args:
        keys: planned keys; none is usable until `mark_captured`.
        bus: where `record` sends steps.
        max_padding: see `GraphConfig.max_padding`.
        failures_to_quarantine: see `GraphConfig.failures_to_quarantine`.
    """

    def __init__(
        self,
        keys: list[GraphKey],
        *,
        bus: EventBus,
        max_padding: float | None = None,
        failures_to_quarantine: int = 0,
        max_captured_tokens: int | None = None,
    ) -> None:
        self._table = KeyTable(list(keys), dict.fromkeys(keys, Reason.NOT_CAPTURED_YET))
        self._bus = bus
        self._max_padding = max_padding
        self._failures_to_quarantine = failures_to_quarantine
        self._max_captured_tokens = max_captured_tokens
        self._num_failed: dict[GraphKey, int] = {}  # in a row
        self._costs: CostTable | None = None
        self._is_muted = False
        self._cache: dict[LiveBatch, Decision] = {}
        self._tell_planned()

    @property
    def keys(self) -> list[GraphKey]:
        """Planned keys, largest first."""
        return list(self._table.keys)

    def decide(self, live: LiveBatch) -> Decision:
        """The decision for ``live``. Changes nothing and counts nothing.

        Raises:
            InputSpecError: sizes that no step can have.
        """
        decision = self._cache.get(live)
        if decision is None:
            _check_sizes(live)
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            decision = choose(live, self._table, max_padding=self._max_padding, costs=self._costs)
            self._cache[live] = decision
        return decision

    def record(self, decision: Decision, launch_seconds: float = 0.0) -> None:
        """Report that a step ran by ``decision``, which took so long on the host."""
        if self._is_muted:
            return
        if self._num_failed and decision.key is not None:
            self._num_failed.pop(decision.key, None)
        mode, bucket, reason = decision.labels
        live = decision.live
        self._bus.emit(
            StepDispatched(
                runtime_mode=mode,
                bucket=bucket,
                reason=reason,
                live_tokens=live.num_tokens,
                padded_tokens=decision.padded_tokens,
                is_decode=live.uniform_query_len is not None,
                live_reqs=live.num_reqs,
                key=decision.key_name,
                launch_seconds=launch_seconds,
            )
        )

    @property
    def costs(self) -> CostTable | None:
        """The measured costs that decide, if any do."""
        return self._costs

    def use_costs(self, costs: CostTable | None) -> None:
        """Decide by ``costs`` from now on; None: by the order alone."""
        self._costs = costs
        self._cache.clear()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Report no step meanwhile: those that measure are nobody's."""
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = False

    def usable(self, key: GraphKey) -> bool:
        """Whether nothing stands against ``key``."""
        return key not in self._table.blocked

    @property
    def blocked(self) -> Mapping[GraphKey, Reason]:
        """The keys that something stands against, with what that is; as it is now."""
        return self._table.blocked

    def why_blocked(self, key: GraphKey) -> Reason | None:
        """What stands against ``key``, if anything does."""
        return self._table.blocked.get(key)

    def record_failure(self, key: GraphKey, error: Exception) -> None:
        """A replay of ``key`` raised: once too often in a row, and the key is quarantined. What is the fault of the
        inputs alone, or of how the caller uses the callable, does not count."""
        if not self._failures_to_quarantine or isinstance(error, InputSpecError | RuntimeStateError):
            return
        num_failed = self._num_failed[key] = self._num_failed.get(key, 0) + 1
        if num_failed >= self._failures_to_quarantine:
            del self._num_failed[key]
            what = f"{num_failed} replays in a row raised, at last {type(error).__name__}: {error}"
            self.quarantine(key, found_by="failures", what=what, where="")

    def replace_keys(self, keys: list[GraphKey]) -> None:
        """Plan ``keys`` from here on. Those that were planned keep what stands against them; new ones wait."""
        planned, blocked = set(self._table.keys), self._table.blocked
        against = {key: blocked.get(key) if key in planned else Reason.NOT_CAPTURED_YET for key in keys}
        self._table = KeyTable(list(keys), {key: reason for key, reason in against.items() if reason is not None})
        self._cache.clear()
        self._tell_planned()

    def mark_captured(self, key: GraphKey) -> None:
        """``key`` may be used from now on."""
        self._num_failed.pop(key, None)
        self._table.blocked.pop(key, None)
        self._cache.clear()

    def block(self, key: GraphKey, reason: Reason) -> None:
        """``key`` may not be used, for ``reason``."""
        self._table.blocked[key] = reason
        self._cache.clear()

    def quarantine(self, key: GraphKey, *, found_by: str, what: str, where: str) -> None:
        """Block ``key`` because its graph is not to be trusted, and report it; see `KeyQuarantined`."""
        self.block(key, Reason.QUARANTINED)
        self._bus.emit(KeyQuarantined(key=str(key), found_by=found_by, what=what, where=where))

    def _tell_planned(self) -> None:
        keys = self._table.keys
        reqs = [key.num_reqs for key in keys if key.uniform_query_len is not None and key.num_reqs is not None]
        self._bus.emit(
            KeysPlanned(
                keys=tuple(str(key) for key in keys),
                largest_tokens=max((key.num_tokens for key in keys), default=0),
                largest_reqs=max(reqs, default=None),
                max_captured_tokens=self._max_captured_tokens,
            )
        )


def _check_sizes(live: LiveBatch) -> None:
    named = {"num_tokens": live.num_tokens, "num_reqs": live.num_reqs, "uniform_query_len": live.uniform_query_len}
    for name, size in named.items():
        is_open = size is None and name != "num_tokens"
        if not is_open and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise InputSpecError(f"a step cannot have {name}={size!r}", fix="use a whole number from 1 on")
    if live.num_reqs is not None and live.num_reqs > live.num_tokens:
        raise InputSpecError(
            f"a step of {live.num_tokens} tokens cannot have {live.num_reqs} requests", fix="count a token for each"
        )
