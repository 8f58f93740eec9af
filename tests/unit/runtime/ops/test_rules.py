"""Rules are data: complete rows, and names that exist."""

import pytest
import torch

from ostinato.runtime.ops import ATTENTION_OPS, UNBROKEN_RULE, UNINITIALISED_OPS, BlockReason, Verdict
from ostinato.runtime.ops.rules import FUNCTION_RULES, OP_RULES


@pytest.mark.parametrize("name", sorted({*OP_RULES, *UNINITIALISED_OPS}))
def test_every_named_op_exists(name):
    namespace, _, op = name.partition("::")
    assert hasattr(getattr(torch.ops, namespace), op)


def test_attention_ops_start_with_the_public_one():
    assert "aten::scaled_dot_product_attention" in ATTENTION_OPS
    assert UNBROKEN_RULE.reason is BlockReason.MIXES_ROWS
    assert UNBROKEN_RULE.verdict is Verdict.CONDITIONAL


def test_every_row_says_what_to_do():
    for name, rule in {**OP_RULES, **FUNCTION_RULES, "unbroken": UNBROKEN_RULE}.items():
        assert rule.fix, name


@pytest.mark.parametrize("name", [n for n in sorted(FUNCTION_RULES) if n.startswith("Tensor.")])
def test_every_named_method_exists(name):
    assert hasattr(torch.Tensor, name.removeprefix("Tensor."))
