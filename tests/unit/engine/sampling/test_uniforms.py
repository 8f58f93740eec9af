"""Numbers of seeded requests: range, repeatability, independence of seeds, positions and neighbours."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling.uniforms import _GAMMA, _mix, seeded_uniform, uniforms_for

SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(SEEDS, st.integers(0, 10**6))
def test_numbers_lie_in_the_half_open_unit_interval_and_repeat(seed: int, position: int) -> None:
    number = seeded_uniform(seed, position)
    assert 0 <= number < 1
    assert number == seeded_uniform(seed, position)


def test_the_stream_is_fixed_for_good() -> None:
    """Changing these numbers changes the tokens of every seeded request: that is a breaking change."""
    got = [seeded_uniform(seed, position) for seed, position in ((0, 0), (0, 1), (1, 0), (-1, 7))]
    assert got == GOLDEN


def test_the_mixer_is_splitmix64() -> None:
    """The first two outputs of the published generator for seed 1234567."""
    assert _mix(1234567 + _GAMMA) == 6457827717110365317
    assert _mix((1234567 + 2 * _GAMMA) % 2**64) == 3203168211198807973


def test_nearby_seeds_share_no_numbers() -> None:
    streams = [{seeded_uniform(seed, position) for position in range(200)} for seed in range(-5, 6)]
    assert len(set().union(*streams)) == 200 * len(streams)


def test_seeded_requests_take_nothing_from_the_shared_generator() -> None:
    seeded = Request(request_id="s", prompt_token_ids=[0], params=SamplingParams(seed=9))
    plain = Request(request_id="p", prompt_token_ids=[0])
    alone = uniforms_for([plain, plain], torch.Generator().manual_seed(1))
    mixed = uniforms_for([seeded, plain, seeded, plain], torch.Generator().manual_seed(1))
    assert mixed == [seeded_uniform(9, 0), alone[0], seeded_uniform(9, 0), alone[1]]
    seeded.output_token_ids = [5, 5, 5]
    assert uniforms_for([seeded], None) == [seeded_uniform(9, 3)]


GOLDEN = [0.6524484863740322, 0.7012121095215252, 0.36818951565166946, 0.7238582745899125]
