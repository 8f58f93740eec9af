"""What may stand in a captured graph, as data: one row an op, with the reason and the remedy.

No torch and no logic: `classify` (what a capture refuses) and `conditions` (what the doctor warns of) read
these rows, so that splitter, capture backends and doctor judge an op by the same rules. Ops are named
``namespace::op`` without overload; Python-level calls that never reach the dispatcher on a CPU are named
``Tensor.method`` or ``torch.function``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "ATTENTION_OPS",
    "ATTENTION_WORDS",
    "COLLECTIVE_NAMESPACES",
    "COLLECTIVE_RULE",
    "CONDITIONAL_RULES",
    "CONTROL_FLOW_RULE",
    "FUNCTION_RULES",
    "HOST_INTEGER_RULE",
    "HOST_LENGTH_ARGUMENTS",
    "HOST_LENGTH_RULE",
    "HOST_TABLE_RULE",
    "JIT_EVERY_CALL_RULE",
    "JIT_RULE",
    "KEPT_TENSOR_RULE",
    "LIVE_STATE_RULE",
    "OP_RULES",
    "RANDOM_RULE",
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
    HOST_PLANNING = "host-side planning"
    HOST_INTEGER = "host integer that depends on the batch"
    FIRST_JIT = "first-time JIT or autotune"
    ALLOCATION = "allocation outside the pool"
    COLLECTIVE = "collective"
    LIVE_STATE = "in-place write to live state"
    RANDOM_STATE = "random state"
    KEPT_TENSOR = "tensor kept from call to call"


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
        "aten::_safe_softmax",  # all that the dispatcher sees of attention by matrix products
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


# --- rules that depend on more than one call, or that set a condition; a capture refuses none of these -------


def _if(reason: BlockReason, fix: str) -> OpRule:
    return OpRule(Verdict.CONDITIONAL, reason, fix)


def _never(reason: BlockReason, fix: str) -> OpRule:
    return OpRule(Verdict.UNFRIENDLY, reason, fix)


_OUTSIDE = "allocate it once, before the first call, and write into it in place"

CONDITIONAL_RULES: dict[str, OpRule] = {
    "aten::_pin_memory": _if(BlockReason.ALLOCATION, _OUTSIDE),
    "aten::pin_memory": _if(BlockReason.ALLOCATION, _OUTSIDE),
    "aten::resize_": _if(
        BlockReason.ALLOCATION, "allocate the largest size before capture: a storage that grows moves"
    ),
    "aten::resize_as_": _if(
        BlockReason.ALLOCATION, "allocate the largest size before capture: a storage that grows moves"
    ),
    "aten::set_": _if(
        BlockReason.ALLOCATION, "copy_ into the tensor: a graph keeps the address that it was captured with"
    ),
}
"""Ops that can be captured under a condition, whatever their arguments are."""

RANDOM_RULE = _if(
    BlockReason.RANDOM_STATE, "use the device's default generator, or register yours; replays then go on drawing"
)
"""Ops that torch tags as drawing from a generator."""

COLLECTIVE_NAMESPACES: frozenset[str] = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
COLLECTIVE_RULE = _if(
    BlockReason.COLLECTIVE,
    "run it once in warm-up, and let all ranks capture and replay the same keys in the same order",
)
"""Ops that wait for other ranks."""

LIVE_STATE_RULE = _if(
    BlockReason.LIVE_STATE,
    "reset it with after_warm_up=, since warm-up and capture write too, and let padded rows write where nobody reads",
)
"""A write into memory that was there before the call: a parameter, buffer, argument or global."""

KEPT_TENSOR_RULE = _if(
    BlockReason.KEPT_TENSOR,
    "copy_ into a buffer that was allocated once: a replay makes no new tensor, so what was kept goes stale",
)
"""A tensor made in the call that outlives it, though it is not returned."""

JIT_RULE = _if(
    BlockReason.FIRST_JIT, "warm_up() compiles it before capture; let its name carry all that specialises it"
)
JIT_EVERY_CALL_RULE = _never(
    BlockReason.FIRST_JIT, "make the specialisation the same in every call, or call it from a @graph_break function"
)
"""A `jit_mark`; and one whose name is new in every call, so that warm-up cannot help."""

HOST_INTEGER_RULE = _never(
    BlockReason.HOST_INTEGER,
    "pass it as a tensor, make it part of the key, or make and use it in one @graph_break function",
)
"""A number that a capture would freeze and that differs between two batches of one size, or two calls."""

HOST_TABLE_RULE = _never(
    BlockReason.HOST_PLANNING,
    "build the table before the step and pass it as a tensor, or move it into a @graph_break function",
)
"""A tensor made from host data that differs between two batches of one size, or two calls."""

CONTROL_FLOW_RULE = _never(
    BlockReason.HOST_PLANNING, "replace the branch with torch.where, or move it into a @graph_break function"
)
"""Two batches of one size, or two calls, run different ops."""

ATTENTION_WORDS = ("attention", "attn")
"""Parts of names of custom ops that are taken for attention."""

HOST_LENGTH_ARGUMENTS: frozenset[str] = frozenset(
    {"max_q", "max_k", "max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_len", "max_length", "seqlen_q", "seqlen_k"}
)
HOST_LENGTH_RULE = _if(
    BlockReason.HOST_INTEGER,
    "call it from a @graph_break function, or make the longest length part of the key (kv_tiers)",
)
"""Arguments by which attention is told a length on the host: a capture freezes it (PITFALLS 16, 8)."""
