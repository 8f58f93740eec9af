"""What a callable would capture, and do with a batch, before it is captured or even made. Pure; no torch."""

from __future__ import annotations

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch.costs import CostTable
from ostinato.runtime.dispatch.decision import Decision
from ostinato.runtime.dispatch.policy import KeyTable, choose
from ostinato.runtime.dispatch.resolve import ModeRequest, resolve_mode
from ostinato.runtime.keys import CaptureSupport, GraphKey, LiveBatch
from ostinato.runtime.planning import largest_size, plan_keys

__all__ = ["planned_keys", "preview"]


def preview(
    live: LiveBatch,
    config: GraphConfig,
    *,
    support: CaptureSupport = CaptureSupport.ALWAYS,
    device_type: str = "cuda",
    costs: CostTable | None = None,
) -> Decision:
    """The decision for ``live`` of a `Graphed` with ``config``, if every key that it plans is captured.

    Args:
        support: the weakest level among the attention that it calls.
        device_type: "cuda" or "cpu".
        costs: measured before, if they are to decide.

    Raises:
        ConfigError: the config does not tell the largest size.
    """
    keys = planned_keys(config, support=support, device_type=device_type)
    return choose(live, KeyTable(keys), max_padding=config.padding_limit, costs=costs)


def planned_keys(config: GraphConfig, *, support: CaptureSupport, device_type: str) -> list[GraphKey]:
    """The keys that a `Graphed` with ``config`` would plan, largest first; see `preview`."""
    resolved = resolve_mode(ModeRequest.of(config, support=support, device_type=device_type))
    return plan_keys(
        config,
        resolved.mode,
        max_size=largest_size(config, None),
        full_mixed_max_tokens=resolved.full_mixed_max_tokens,
    )
