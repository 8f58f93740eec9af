"""Is this op capturable, and why not: rules as data, and the functions that read them."""

from ostinato.runtime.ops.classify import classify_function, classify_op, op_name
from ostinato.runtime.ops.conditions import draws, find_condition, is_attention, written_tensors
from ostinato.runtime.ops.rules import ATTENTION_OPS, UNBROKEN_RULE, UNINITIALISED_OPS, BlockReason, OpRule, Verdict

__all__ = [
    "ATTENTION_OPS",
    "UNBROKEN_RULE",
    "UNINITIALISED_OPS",
    "BlockReason",
    "OpRule",
    "Verdict",
    "classify_function",
    "classify_op",
    "draws",
    "find_condition",
    "is_attention",
    "op_name",
    "written_tensors",
]
