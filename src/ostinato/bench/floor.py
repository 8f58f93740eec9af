"""The least time that a step could take: bytes over bandwidth, or arithmetic over throughput. Pure arithmetic.

Method: Williams et al., "Roofline" (CACM 2009), with the limits measured on the machine (`device_limits`), not
taken from a data sheet. What is counted is stated at each function; activations are not.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceLimits", "ModelCosts", "Work", "floor_ms", "floors", "step_work"]


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """What the device reached when nothing else ran."""

    copy_bytes_per_s: float
    """Read and written bytes of a large copy."""
    matmul_flops_per_s: float
    """Of a large square product in the model's dtype; a multiplication and an addition are two."""


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """What a step reads and computes of one decoder."""

    weight_bytes: int
    """All parameters once; a tied head once, and no embedding that is not the head."""
    layer_weights: int
    """Elements of the matrices that every token meets."""
    head_weights: int
    """Elements of the output projection, which only rows that are sampled from meet."""
    kv_token_bytes: int
    """Keys and values of one token in all layers."""
    attention_flops: int
    """For one query token and one token of its context, in all layers: scores and weighted sum."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Bytes to move and operations to do."""

    num_bytes: float
    num_flops: float


def step_work(costs: ModelCosts, *, num_tokens: int, num_sampled: int, kv_tokens: float, context_pairs: float) -> Work:
    """What one step must do at least.

    Args:
        num_tokens: rows that run through the layers.
        num_sampled: rows that reach the head.
        kv_tokens: tokens whose keys and values are read or written.
        context_pairs: sum over query tokens of the context that each attends to.
    """
    return Work(
        num_bytes=costs.weight_bytes + costs.kv_token_bytes * kv_tokens,
        num_flops=2 * (costs.layer_weights * num_tokens + costs.head_weights * num_sampled)
        + costs.attention_flops * context_pairs,
    )


def floor_ms(work: Work, limits: DeviceLimits) -> float:
    """Whichever takes longer alone."""
    return max(work.num_bytes / limits.copy_bytes_per_s, work.num_flops / limits.matmul_flops_per_s) * 1e3


def floors(
    costs: ModelCosts,
    limits: DeviceLimits,
    *,
    num_tokens: int,
    num_sampled: int,
    kv_tokens: float,
    context_pairs: float,
    measured_ms: float,
) -> dict[str, float]:
    """The columns ``floor_ms``, ``weight_floor_ms``, ``floor_bytes`` and ``floor_percent`` of a row.

    ``weight_floor_ms`` is the coarser floor of published tables: weights alone, and every row through the head.
    ``floor_percent`` is the floor's share of the measured time: 100 would be perfect.
    """
    work = step_work(
        costs, num_tokens=num_tokens, num_sampled=num_sampled, kv_tokens=kv_tokens, context_pairs=context_pairs
    )
    weights = step_work(costs, num_tokens=num_tokens, num_sampled=num_tokens, kv_tokens=0, context_pairs=0)
    least = floor_ms(work, limits)
    return {
        "floor_ms": round(least, 4),
        "weight_floor_ms": round(floor_ms(weights, limits), 4),
        "floor_bytes": round(work.num_bytes),
        "floor_percent": round(100 * least / measured_ms, 1),
    }
