"""Out variants: found where there is exactly one with the same inputs."""

import pytest
import torch

from ostinato.runtime.ops.out_variants import find_out_variant

aten = torch.ops.aten


@pytest.mark.parametrize("func", [aten.add.Tensor, aten.mm.default, aten.silu.default, aten.cat.default])
def test_found(func):
    variant, name = find_out_variant(func)
    assert name in [a.name for a in variant._schema.arguments if a.is_out]
    assert variant.overloadpacket is func.overloadpacket


def test_it_computes_the_same():
    variant, name = find_out_variant(aten.add.Tensor)
    out = torch.empty(3)
    variant(torch.ones(3), torch.ones(3), alpha=2, **{name: out})
    assert out.tolist() == [3.0] * 3


@pytest.mark.parametrize("func", [aten.add_.Tensor, aten.sort.default, aten.split.Tensor, aten.add.out])
def test_none_for_in_place_and_several_results(func):
    assert find_out_variant(func) is None
