"""What may stand in a captured graph, as data: one row an op, with the reason and the remedy.

No torch and no logic: `classify` reads these rows for the splitter, both capture backends and the doctor,
so that all of them judge an op by the same rules. Ops are named ``namespace::op`` without overload;
Python-level calls that never reach the dispatcher on a CPU are named ``Tensor.method`` or ``torch.function``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "ATTENTION_OPS",
    "FUNCTION_RULES",
    "OP_RULES",
    "UNBROKEN_RULE",
    "UNINITIALISED_OPS",
    "BlockReason",
    "OpRule",
    "Verdict",
]


class Verdict(StrEnum):
    """How an op gets on with capture."""

    FRIENDLY = "friendly"
    CONDITIONAL = "conditional"
    UNFRIENDLY = "unfriendly"


class BlockReason(StrEnum):
    """Why an op cannot, or only conditionally can, be captured."""

    HOST_SYNC = "host sync"
    DATA_DEPENDENT_SHAPE = "data-dependent shape"
    MIXES_ROWS = "mixes rows of the batch"


@dataclass(frozen=True, slots=True)
class OpRule:
    """One row of the table."""

    verdict: Verdict
    reason: BlockReason
    fix: str


def _sync(fix: str) -> OpRule:
    return OpRule(Verdict.UNFRIENDLY, BlockReason.HOST_SYNC, fix)


def _dynamic(fix: str) -> OpRule:
    return OpRule(Verdict.UNFRIENDLY, BlockReason.DATA_DEPENDENT_SHAPE, fix)


_KEEP = "keep the value on the device, or move the call into a @graph_break function"
_MASK = "use torch.where or a fixed-size mask, or move the call into a @graph_break function"

OP_RULES: dict[str, OpRule] = {
    "aten::_local_scalar_dense": _sync(_KEEP),
    "aten::item": _sync(_KEEP),
    "aten::is_nonzero": _sync(_KEEP),
    "aten::equal": _sync("use torch.eq(...).all() and keep the result on the device"),
    "aten::nonzero": _dynamic(_MASK),
    "aten::nonzero_numpy": _dynamic(_MASK),
    "aten::argwhere": _dynamic(_MASK),
    "aten::masked_select": _dynamic(_MASK),
    "aten::unique_consecutive": _dynamic(_MASK),
    "aten::_unique": _dynamic(_MASK),
    "aten::_unique2": _dynamic(_MASK),
    "aten::unique_dim": _dynamic(_MASK),
    "aten::repeat_interleave": _dynamic("pass output_size=..., or move the call into a @graph_break function"),
    "aten::bincount": _dynamic("use a scatter_add_ into a fixed-size tensor"),
}
"""Ops that block capture whatever their arguments are (``repeat_interleave``: without output_size)."""

FUNCTION_RULES: dict[str, OpRule] = {
    "Tensor.item": _sync(_KEEP),
    "Tensor.tolist": _sync(_KEEP),
    "Tensor.numpy": _sync(_KEEP),
    "Tensor.__array__": _sync(_KEEP),
    "Tensor.cpu": _sync(_KEEP),
    "Tensor.__repr__": _sync("do not print tensors inside the captured callable"),
    "Tensor.__format__": _sync("do not format tensors inside the captured callable"),
    "Tensor.__bool__": _sync("replace the branch with torch.where, or move it into a @graph_break function"),
    "Tensor.new_tensor": _sync("copy host data into a static buffer before the step"),
    "torch.from_numpy": _sync("copy host data into a static buffer before the step"),
    "torch.tensor(device=...)": _sync("copy host data into a static buffer before the step"),
}
"""Calls that read device memory from the host. On a CPU tensor some never reach the dispatcher."""

ATTENTION_OPS: frozenset[str] = frozenset(
    {
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_attention_math",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
    }
)
"""Ops whose rows read each other: in a segment keyed on tokens alone, padding would leak into live rows."""

UNBROKEN_RULE = OpRule(
    Verdict.CONDITIONAL,
    BlockReason.MIXES_ROWS,
    "call it from a @graph_break function, or set unbroken_attention='allow' if padded rows cannot reach live ones",
)
"""Why an op of `ATTENTION_OPS` may not stand in a piecewise segment."""

UNINITIALISED_OPS: frozenset[str] = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
    }
)
"""Allocations that launch nothing: a replay leaves their memory as it was."""
