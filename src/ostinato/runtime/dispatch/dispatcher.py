"""`Dispatcher`: the key table of one callable, its answers cached, each step reported as an event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ostinato.errors import InputSpecError
from ostinato.runtime.dispatch.costs import CostTable
from ostinato.runtime.dispatch.decision import Decision, Reason
from ostinato.runtime.dispatch.policy import KeyTable, choose
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.telemetry import EventBus, StepDispatched

__all__ = ["Dispatcher"]

_CACHE_LIMIT = 65_536


class Dispatcher:
    """Answers "which key, and why" for live batches.

    Args:
        keys: planned keys; none is usable until `mark_captured`.
        bus: where `record` sends steps.
        max_padding: see `GraphConfig.max_padding`.
    """

    def __init__(self, keys: list[GraphKey], *, bus: EventBus, max_padding: float | None = None) -> None:
        self._table = KeyTable(list(keys), dict.fromkeys(keys, Reason.NOT_CAPTURED_YET))
        self._bus = bus
        self._max_padding = max_padding
        self._costs: CostTable | None = None
        self._is_muted = False
        self._cache: dict[LiveBatch, Decision] = {}

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

    def record(self, decision: Decision) -> None:
        """Report that a step ran by ``decision``."""
        if self._is_muted:
            return
        self._bus.emit(
            StepDispatched(
                runtime_mode=decision.runtime_mode.value,
                bucket=decision.bucket,
                reason=decision.reason.value,
                live_tokens=decision.live.num_tokens,
                padded_tokens=decision.padded_tokens,
                is_decode=decision.live.uniform_query_len is not None,
                live_reqs=decision.live.num_reqs,
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

    def mark_captured(self, key: GraphKey) -> None:
        """``key`` may be used from now on."""
        self._table.blocked.pop(key, None)
        self._cache.clear()

    def block(self, key: GraphKey, reason: Reason) -> None:
        """``key`` may not be used, for ``reason``."""
        self._table.blocked[key] = reason
        self._cache.clear()


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
