"""`find_gap`: what counts as the same, by bits and by tolerance."""

from __future__ import annotations

import pytest
import torch

from ostinato.runtime.runners import find_gap, has_same_bits

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_equal_bits(dtype):
    values = torch.tensor([1.0, NAN, INF, -0.0]).to(dtype)
    assert find_gap(values, values.clone(), is_exact=True) == (None, 0.0)
    assert has_same_bits(values, values.clone())
    other = values.clone()
    other[3] = 0.0
    assert not has_same_bits(values, other), "minus zero is another zero"
    assert find_gap(values, other, is_exact=True)[0] is not None
    assert find_gap(values, other, is_exact=False)[0] is None


@pytest.mark.parametrize(
    ("dtype", "passes", "fails"),
    [(torch.float32, 9e-5, 1.2e-4), (torch.bfloat16, 1.6e-2, 3e-2), (torch.float16, 9e-3, 1.2e-2)],
)
def test_tolerances(dtype, passes, fails):
    expected = torch.tensor([1.0, 0.5, 0.0]).to(dtype)
    for size, is_close in ((passes, True), (fails, False)):
        gap, largest = find_gap(expected, expected + torch.tensor([0.0, 0.0, size]).to(dtype), is_exact=False)
        assert (gap is None) is is_close
        assert largest == pytest.approx(size, rel=0.01)
    assert find_gap(expected, expected + torch.tensor(fails).to(dtype), is_exact=False, is_other_shape=True)[0] is None


def test_whole_numbers_and_flags_must_be_equal():
    gap, _ = find_gap(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [5, 4]]), is_exact=False)
    assert gap is not None and gap.relative == INF and gap.detail == "1 of 4 values, at [1, 0]"
    assert find_gap(torch.tensor([True]), torch.tensor([False]), is_exact=False)[0] is not None


@pytest.mark.parametrize(("a", "b"), [(NAN, 1.0), (INF, 1.0), (INF, -INF), (NAN, INF)])
def test_what_is_not_finite_must_stand_in_both(a, b):
    one, other = torch.tensor([1.0, a]), torch.tensor([1.0, b])
    for expected, got in ((one, other), (other, one)):
        gap, _ = find_gap(expected, got, is_exact=False)
        assert gap is not None and gap.relative == INF
    assert find_gap(one, one.clone(), is_exact=False) == (None, 0.0)


def test_structure_shape_dtype_and_plain_values():
    x = torch.ones(2)
    for expected, got, path in [
        ((x, x), (x,), ""),
        ((x, x), (x, torch.ones(3)), "[1]"),
        ({"a": x}, {"a": x.double()}, "['a']"),
        ((x, 3), (x, 4), "[1]"),
    ]:
        gap, _ = find_gap(expected, got, is_exact=False)
        assert gap is not None and gap.path == path
    assert find_gap((x, None, "s"), (x.clone(), None, "s"), is_exact=True)[0] is None


def test_nothing_and_zero():
    assert find_gap(torch.empty(0), torch.empty(0), is_exact=False) == (None, 0.0)
    assert find_gap(torch.zeros(2), torch.zeros(2), is_exact=False) == (None, 0.0)
    gap, _ = find_gap(torch.zeros(2), torch.full((2,), 1e-9), is_exact=False)
    assert gap is not None and gap.relative == INF
