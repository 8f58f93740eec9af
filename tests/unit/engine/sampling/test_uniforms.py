"""Numbers of seeded requests: range, repeatability, independence of seeds, positions and neighbours."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.sampling.settings import Setting
from ostinato.engine.sampling.uniforms import _GAMMA, _mixed, seeded_uniforms, stream_of
from ostinato.testing.sampling import settings_for

SEEDS = st.integers(-(2**63), 2**63 - 1)


def number_of(seed: int, position: int) -> float:
    return float(seeded_uniforms(np.array([stream_of(seed)], dtype=np.uint64), np.array([position]))[0])


def uniforms(requests: list[Request], generator: torch.Generator | None = None) -> list[float]:
    found: list[float] = settings_for(requests, generator)[:, Setting.UNIFORM].tolist()
    return found


@given(SEEDS, st.integers(0, 10**6))
def test_numbers_lie_in_the_half_open_unit_interval_and_repeat(seed: int, position: int) -> None:
    number = number_of(seed, position)
    assert 0 <= number < 1
    assert number == number_of(seed, position)


@given(st.lists(st.tuples(SEEDS, st.integers(0, 10**6)), min_size=2, max_size=9))
def test_many_at_once_are_those_of_each_alone(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*pairs, strict=True)
    streams = np.array([stream_of(seed) for seed in seeds], dtype=np.uint64)
    together = seeded_uniforms(streams, np.array(positions)).tolist()
    assert together == [number_of(seed, position) for seed, position in pairs]


def test_the_stream_is_fixed_for_good() -> None:
    """Changing these numbers changes the tokens of every seeded request: that is a breaking change."""
    got = [number_of(seed, position) for seed, position in ((0, 0), (0, 1), (1, 0), (-1, 7))]
    assert got == GOLDEN


def test_the_mixer_is_splitmix64() -> None:
    """The first two outputs of the published generator for seed 1234567."""
    states = np.array([1234567 + _GAMMA, (1234567 + 2 * _GAMMA) % 2**64], dtype=np.uint64)
    assert _mixed(states).tolist() == [6457827717110365317, 3203168211198807973]


def test_nearby_seeds_share_no_numbers() -> None:
    streams = [{number_of(seed, position) for position in range(200)} for seed in range(-5, 6)]
    assert len(set().union(*streams)) == 200 * len(streams)


def test_seeded_and_greedy_requests_take_nothing_from_the_shared_generator() -> None:
    greedy = Request(request_id="g", prompt_token_ids=[0])
    seeded = Request(request_id="s", prompt_token_ids=[0], params=SamplingParams(temperature=1.0, seed=9))
    plain = Request(request_id="p", prompt_token_ids=[0], params=SamplingParams(temperature=1.0))
    alone = uniforms([plain, plain], torch.Generator().manual_seed(1))
    mixed = uniforms([seeded, plain, greedy, seeded, plain], torch.Generator().manual_seed(1))
    assert mixed == [number_of(9, 0), alone[0], 0.0, number_of(9, 0), alone[1]]
    seeded.output_token_ids, seeded.num_pending_tokens = [5, 5], 1
    assert uniforms([seeded]) == [number_of(9, 3)], "a pending token is at a position too"


GOLDEN = [0.6524484863740322, 0.7012121095215252, 0.36818951565166946, 0.7238582745899125]
