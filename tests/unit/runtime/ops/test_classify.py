"""Each kind of op that a graph cannot hold is told from its harmless sibling."""

import pytest
import torch

from ostinato.runtime.ops import BlockReason, Verdict, classify_function, classify_op, op_name
from ostinato.runtime.ops.rules import FUNCTION_RULES, OP_RULES

aten = torch.ops.aten
SYNC, DYNAMIC = BlockReason.HOST_SYNC, BlockReason.DATA_DEPENDENT_SHAPE
X, MASK, INDEX = torch.arange(4.0), torch.tensor([True, False, True, False]), torch.tensor([1, 2])
META = torch.empty(4, device="meta")


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "reason"),
    [
        (aten.add.Tensor, (X, X), {}, None),
        (aten.mm.default, (X.view(2, 2), X.view(2, 2)), {}, None),
        (aten._local_scalar_dense.default, (X,), {}, SYNC),
        (aten.equal.default, (X, X), {}, SYNC),
        (aten.nonzero.default, (X,), {}, DYNAMIC),
        (aten.masked_select.default, (X, MASK), {}, DYNAMIC),
        (aten.bincount.default, (INDEX,), {}, DYNAMIC),
        (aten._unique2.default, (X,), {}, DYNAMIC),
        (aten.unique_dim.default, (X, 0), {}, DYNAMIC),
        (aten.repeat_interleave.Tensor, (INDEX,), {}, DYNAMIC),
        (aten.repeat_interleave.Tensor, (INDEX,), {"output_size": 3}, None),
        (aten.index.Tensor, (X, [INDEX]), {}, None),
        (aten.index.Tensor, (X, [None, MASK]), {}, DYNAMIC),
        (aten.index.Tensor, (X, [MASK.to(torch.uint8)]), {}, DYNAMIC),
        (aten.index_put_.default, (X, [INDEX], X[:2]), {}, None),
        (aten.index_put_.default, (X, [MASK], X[:2]), {}, DYNAMIC),
        (aten.index_put_.default, (X, [MASK], torch.tensor(0.0)), {}, None),
        (aten.copy_.default, (X, X), {}, None),
        (aten.copy_.default, (META, X), {}, SYNC),
        (aten.copy_.default, (X, META), {}, SYNC),
        (aten._to_copy.default, (X,), {"dtype": torch.float64}, None),
        (aten._to_copy.default, (META,), {"device": torch.device("cpu")}, SYNC),
        (aten._to_copy.default, (X,), {"device": torch.device("meta")}, SYNC),
        (aten.resize_.default, (X, [2, 2]), {}, None),
        (aten.resize_.default, (X, [8]), {}, BlockReason.ALLOCATION),
        (aten.resize_.default, (X[2:], [2]), {}, None),
        (aten.resize_.default, (X[2:], [3]), {}, BlockReason.ALLOCATION),
        (aten.resize_as_.default, (X, X[:2]), {}, None),
        (aten.resize_as_.default, (X[:2], torch.arange(9.0)), {}, BlockReason.ALLOCATION),
    ],
)
def test_ops(func, args, kwargs, reason):
    rule = classify_op(func, args, kwargs, device_type="cpu")
    assert (rule and rule.reason) == reason
    if rule is not None:
        assert rule.verdict is Verdict.UNFRIENDLY
        assert rule.fix


@pytest.mark.parametrize(
    ("func", "args", "reason"),
    [(aten.allclose.default, (X, X), SYNC), (aten.unique_dim_consecutive.default, (X, 0), DYNAMIC)],
)
def test_tags_catch_what_no_row_names(func, args, reason):
    assert op_name(func) not in OP_RULES
    assert classify_op(func, args, {}, device_type="cpu").reason is reason


@pytest.mark.parametrize("name", sorted(FUNCTION_RULES))
def test_functions(name):
    assert classify_function(name).reason is SYNC


def test_other_functions_pass():
    assert classify_function("Tensor.sum") is None


def test_op_names_have_no_overload():
    assert op_name(aten.add.Tensor) == op_name(aten.add.Scalar) == "aten::add"


def test_reading_a_host_tensor_is_harmless_while_a_gpu_captures():
    func, args = torch.ops.aten._local_scalar_dense.default, (torch.tensor(3),)
    assert classify_op(func, args, {}, device_type="cpu") is not None
    assert classify_op(func, args, {}, device_type="cuda") is None
