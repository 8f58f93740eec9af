"""Each condition is told from its harmless sibling; writes are found by schema."""

import importlib

import pytest
import torch

from ostinato.runtime import opaque_op
from ostinato.runtime.ops import BlockReason, Verdict, classify_op, find_condition, is_attention, written_tensors
from ostinato.runtime.ops.rules import CONDITIONAL_RULES

aten = torch.ops.aten
X = torch.arange(4.0)


@opaque_op(mutates=("out",), name="conditions_test_attention")
def attend(q: torch.Tensor, out: torch.Tensor, max_seqlen: int) -> None:
    out.copy_(q)


@pytest.mark.parametrize(
    ("func", "args", "reason"),
    [
        (aten.add.Tensor, (X, X), None),
        (aten.bernoulli_.float, (X, 0.5), BlockReason.RANDOM_STATE),
        (aten.rand.default, ([4],), BlockReason.RANDOM_STATE),
        (aten.zeros.default, ([4],), None),
        (aten.resize_.default, (X, [2]), BlockReason.ALLOCATION),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (X, X, X), BlockReason.MIXES_ROWS),
        (attend, (X, X, 4), BlockReason.HOST_INTEGER),
    ],
)
def test_conditions(func, args, reason):
    rule = find_condition(func, args, {})
    assert (rule and rule.reason) == reason
    if rule is not None:
        assert rule.verdict is Verdict.CONDITIONAL and rule.fix
        assert classify_op(func, args, {}, device_type="cpu") is None  # a capture refuses none of them


def test_collectives_go_by_namespace():
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    importlib.import_module("torch.distributed._functional_collectives")  # registers the ops
    func = torch.ops._c10d_functional.all_reduce.default
    assert find_condition(func, (X, "sum", "0"), {}).reason is BlockReason.COLLECTIVE


def test_attention_goes_by_name():
    assert is_attention("vendor::paged_attn_decode") and is_attention("aten::scaled_dot_product_attention")
    assert not is_attention("vendor::rms_norm") and not is_attention("aten::softmax")


def test_written_tensors_go_by_schema():
    assert written_tensors(aten.add.Tensor, (X, X), {}) == []
    (written,) = written_tensors(aten.add_.Tensor, (X, torch.ones(4)), {})
    assert written is X
    out = torch.empty(4)
    assert written_tensors(aten.add.out, (X, X), {"out": out})[0] is out
    assert written_tensors(attend, (X, out, 4), {})[0] is out


@pytest.mark.parametrize("name", sorted(CONDITIONAL_RULES))
def test_rows_name_ops_of_this_torch(name):
    assert hasattr(aten, name.removeprefix("aten::"))
