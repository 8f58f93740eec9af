"""Is this op capturable, and why not: rules as data, and the one function that reads them."""

from ostinato.runtime.ops.classify import classify_function, classify_op, op_name
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
    "op_name",
]
