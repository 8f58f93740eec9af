"""The decoder through paged attention against a dense decoder written down by hand, for every family."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
TOKENS = [3, 17, 60, 0, 22, 22, 41, 5, 9, 33, 12]


@pytest.fixture
def parts(hf, weights, make_engine, make_reference):
    return make_engine(hf, weights), make_reference(hf, weights)


def close(got, expected):
    assert expected.abs().max() > 1.0, "a check on near-zero logits shows nothing"
    torch.testing.assert_close(got.double(), expected, **TOLERANCE)


def test_prefill_then_decode(parts):
    engine, reference = parts
    expected = reference.logits(TOKENS)
    close(engine.step({"a": TOKENS[:7]})["a"], expected[:7])
    for i in range(7, len(TOKENS)):
        close(engine.step({"a": TOKENS[i : i + 1]}, uniform=1)["a"], expected[i : i + 1])


def test_chunked_prefill(parts):
    engine, reference = parts
    expected = reference.logits(TOKENS)
    for start, end in ((0, 1), (1, 6), (6, 11)):
        close(engine.step({"a": TOKENS[start:end]})["a"], expected[start:end])


def test_requests_in_one_batch_do_not_see_each_other(parts):
    engine, reference = parts
    other = [50, 2, 2, 7, 31]
    engine.step({"a": TOKENS[:5]})
    mixed = engine.step({"b": other[:3], "a": TOKENS[5:6]})
    close(mixed["a"], reference.logits(TOKENS[:6])[5:])
    close(mixed["b"], reference.logits(other)[:3])
    decode = engine.step({"b": other[3:4], "a": TOKENS[6:7]}, uniform=1)
    close(decode["a"], reference.logits(TOKENS[:7])[6:])
    close(decode["b"], reference.logits(other)[3:4])


def test_several_tokens_a_request_decode_like_one(parts):
    engine, reference = parts
    engine.step({"a": TOKENS[:5], "b": TOKENS[4:]})
    step = engine.step({"a": TOKENS[5:8], "b": [1, 2, 3]}, uniform=3)
    close(step["a"], reference.logits(TOKENS)[5:8])
    close(step["b"], reference.logits([*TOKENS[4:], 1, 2, 3])[-3:])
