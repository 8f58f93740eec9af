"""Rotary embedding against its definition: complex rotation, and the published scaling rules."""

from __future__ import annotations

import math

import pytest
import torch

from ostinato.engine.layers import RopeConfig, RotaryTable
from ostinato.engine.layers.rotary import rotary_frequencies, rotate


def test_default_frequencies():
    expected = [10000.0 ** (-2 * i / 8) for i in range(4)]
    assert rotary_frequencies(RopeConfig(), 8).tolist() == pytest.approx(expected)


def test_linear_scaling_divides_every_frequency():
    plain, scaled = (rotary_frequencies(r, 16) for r in (RopeConfig(), RopeConfig(kind="linear", factor=4.0)))
    torch.testing.assert_close(scaled * 4.0, plain)


def test_llama3_scaling_keeps_short_waves_stretches_long_ones_and_blends_between():
    rope = RopeConfig(
        kind="llama3",
        theta=500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_len=8192,
    )
    plain = rotary_frequencies(RopeConfig(theta=500000.0), 128).tolist()
    kinds = set()
    for before, after in zip(plain, rotary_frequencies(rope, 128).tolist(), strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4.0:
            kinds.add("short")
            assert after == pytest.approx(before)
        elif wavelength > 8192 / 1.0:
            kinds.add("long")
            assert after == pytest.approx(before / 8.0)
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            assert after == pytest.approx((1 - smooth) * before / 8.0 + smooth * before, rel=1e-5)
    assert kinds == {"short", "long", "between"}


def test_rotate_turns_each_pair_by_position_times_frequency():
    head_dim, positions = 16, torch.tensor([0, 3, 11])
    x = torch.randn(3, 2, head_dim, generator=torch.Generator().manual_seed(0))
    rotary = RotaryTable(RopeConfig(), head_dim, 32)(positions)
    assert rotary.shape == (3, head_dim) and rotary.dtype == torch.float32
    pairs = torch.complex(x[..., : head_dim // 2], x[..., head_dim // 2 :])
    angles = positions[:, None, None] * rotary_frequencies(RopeConfig(), head_dim)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotate(x, rotary), torch.cat((turned.real, turned.imag), dim=-1), rtol=1e-5, atol=1e-5)


def test_the_table_is_float32_and_no_part_of_a_checkpoint():
    table = RotaryTable(RopeConfig(), 8, 4)
    assert table.table.dtype == torch.float32
    assert not table.state_dict()
