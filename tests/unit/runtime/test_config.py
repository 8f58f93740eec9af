"""`GraphConfig`: what is accepted, and what each refusal says."""

import dataclasses

import pytest

from ostinato.errors import ConfigError, UnknownNameError
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.keys import Mode, Partition


def test_names_become_enums_and_sizes_are_sorted():
    config = GraphConfig(mode="full", partition="breakable", sizes=[4, 1, 4, 2], decode_sizes=(8, 2), kv_tiers=(64, 16))
    assert config.mode is Mode.FULL and config.partition is Partition.BREAKABLE
    assert config.sizes == (1, 2, 4)
    assert config.decode_sizes == (2, 8)
    assert config.kv_tiers == (16, 64)


def test_a_replaced_config_is_checked_again():
    config = GraphConfig(mode="full")
    assert dataclasses.replace(config, mode="none").mode is Mode.NONE
    with pytest.raises(UnknownNameError):
        dataclasses.replace(config, outputs="borrow")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "ful"}, "unknown mode 'ful' Fix: did you mean 'full'? valid: auto, full, "),
        ({"partition": "fxx"}, "unknown partition 'fxx' Fix: did you mean 'fx'? valid: breakable, fx, inductor"),
        ({"compile": "gcc"}, "unknown compile 'gcc' Fix: valid: inductor, none"),
        ({"outputs": "vew"}, "unknown outputs 'vew' Fix: did you mean 'view'? valid: copy, view"),
        ({"unbroken_attention": "maybe"}, "unknown unbroken_attention 'maybe' Fix: valid: allow, error"),
        ({"sizes": ()}, "sizes must be positive integers (got=()) Fix: remove the empty list"),
        ({"sizes": (4, 0)}, "sizes must be positive integers (got=(4, 0)) Fix: remove [0]"),
        ({"sizes": (True,)}, "Fix: remove [True]"),
        ({"decode_sizes": (-1,)}, "decode_sizes must be positive integers"),
        ({"uniform_query_lens": (1.5,)}, "uniform_query_lens must be positive integers"),
        ({"kv_tiers": ("16",)}, "kv_tiers must be positive integers"),
        ({"max_size": 0}, "max_size must be positive integers"),
        ({"compile_max_tokens": 0}, "compile_max_tokens must be positive integers"),
        ({"max_num_reqs": -3}, "max_num_reqs must be positive integers"),
        ({"sizes": (4, 9), "max_size": 8}, "size 9 is above max_size 8 Fix: drop it from sizes or raise max_size"),
        ({"decode_sizes": (9,), "max_num_reqs": 8}, "decode size 9 is above max_num_reqs 8 Fix: drop it"),
        ({"sizes": 5}, "sizes must be several sizes (got=5) Fix: write sizes=(5,)"),
        ({"sizes": "12"}, "sizes must be several sizes (got=12) Fix: write sizes=(1, 2, 4)"),
        ({"padding": "no"}, "padding is 'no' Fix: use True or False"),
        ({"max_padding": "x"}, "max_padding is 'x'"),
        ({"max_padding": float("nan")}, "max_padding is nan"),
        ({"warm_up_runs": 1.5}, "warm_up_runs is 1.5"),
        ({"full_mixed_max_tokens": "x"}, "full_mixed_max_tokens is 'x'"),
        ({"full_mixed_max_tokens": -1}, "full_mixed_max_tokens is -1 Fix: use a number of tokens"),
        ({"max_captured_size": 0}, "max_captured_size must be positive integers"),
        ({"full_mixed_num_reqs": 0}, "full_mixed_num_reqs must be positive integers"),
        ({"failures_to_quarantine": -1}, "failures_to_quarantine is -1 Fix: use a number of failures in a row, or 0"),
        ({"failures_to_quarantine": True}, "failures_to_quarantine is True"),
        ({"max_padding": 0.9}, "max_padding is 0.9 Fix: use 1.0"),
        ({"warm_up_runs": 0}, "warm_up_runs is 0 Fix: use 1 or more"),
    ],
)
def test_refusals(settings, text):
    with pytest.raises(ConfigError) as caught:
        GraphConfig(**settings)
    assert text in str(caught.value)
