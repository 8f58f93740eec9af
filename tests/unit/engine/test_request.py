"""SamplingParams bounds, Request state, stop rules and prompt checks."""

from __future__ import annotations

import math
import subprocess
import sys
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from ostinato.engine.request import FinishReason, Request, SamplingParams, natural_finish, validate_prompt
from ostinato.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_tokens", 0, ">= 1"),
        ("max_tokens", 1.0, ">= 1"),
        ("max_tokens", True, ">= 1"),
        ("temperature", -0.1, ">= 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", "1", "finite"),
        ("top_k", -1, ">= 0"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.01, "(0, 1]"),
        ("top_p", math.nan, "(0, 1]"),
        ("min_p", -0.01, "[0, 1]"),
        ("min_p", 1.01, "[0, 1]"),
        ("seed", 2**63, "64-bit"),
        ("seed", -(2**63) - 1, "64-bit"),
        ("seed", 0.5, "64-bit"),
        ("repetition_penalty", 0.0, "> 0"),
        ("repetition_penalty", math.inf, "> 0"),
        ("presence_penalty", 2.1, "[-2, 2]"),
        ("frequency_penalty", -2.1, "[-2, 2]"),
        ("stop", ("a", ""), "non-empty"),
        ("stop", (1,), "non-empty"),
        ("stop", "", "non-empty"),
        ("stop_token_ids", (-1,), ">= 0"),
        ("stop_token_ids", 7, ">= 0"),
        ("logprobs", -1, "0..20"),
        ("logprobs", 21, "0..20"),
        ("ignore_eos", 1, "true or false"),
    ],
)
def test_bad_params_name_field_range_and_value(field: str, value: Any, expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.message.startswith(field)
    assert expected in caught.value.message
    assert repr(value if field != "stop_token_ids" or value == 7 else value[0]) in caught.value.message
    assert caught.value.context["field"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0), ("top_p", 1), ("top_p", 1e-9), ("min_p", 0), ("min_p", 1), ("seed", -(2**63)),
        ("presence_penalty", -2), ("frequency_penalty", 2), ("logprobs", 0), ("logprobs", 20), ("max_tokens", 1),
    ],
)  # fmt: skip
def test_bounds_themselves_are_accepted(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_stop_accepts_one_string_and_lists() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[1]).stop_token_ids == (1,)  # type: ignore[arg-type]


def test_greedy_and_penalties_are_recognised() -> None:
    assert SamplingParams().is_greedy and not SamplingParams().has_penalties
    assert not SamplingParams(temperature=0.1).is_greedy
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert SamplingParams(**{name: 0.5}).has_penalties  # type: ignore[arg-type]


def test_request_counts_and_slices() -> None:
    request = Request(request_id="r", prompt_token_ids=[1, 2, 3], output_token_ids=[4, 5])
    assert (request.num_prompt_tokens, request.num_tokens) == (3, 5)
    assert request.all_token_ids == [1, 2, 3, 4, 5]
    for start in range(6):
        for num in range(6 - start):
            assert request.token_slice(start, num) == [1, 2, 3, 4, 5][start : start + num]


def test_requests_share_no_lists_and_compare_by_identity() -> None:
    a, b = (Request(request_id="r", prompt_token_ids=[1]) for _ in range(2))
    a.output_token_ids.append(1)
    a.pages.append(1)
    assert b.output_token_ids == [] and b.pages == []
    assert a != b and len({a, b}) == 2


def test_decode_is_judged_from_state_not_shape() -> None:
    one_token_prompt = Request(request_id="r", prompt_token_ids=[1])
    assert not one_token_prompt.is_decode  # one token left, but nothing sampled yet
    request = Request(request_id="r", prompt_token_ids=[1, 2], output_token_ids=[3], num_computed_tokens=2)
    assert request.is_decode
    request.num_computed_tokens = 1
    assert not request.is_decode  # preempted and recomputing
    assert not request.is_finished
    request.finish_reason = FinishReason.ABORT
    assert request.is_finished and request.finish_reason == "abort"


def _request(outputs: list[int], **params: Any) -> Request:
    return Request(request_id="r", prompt_token_ids=[1, 2], params=SamplingParams(**params), output_token_ids=outputs)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (_request([]), None),
        (_request([5]), None),
        (_request([9]), FinishReason.STOP),
        (_request([9], ignore_eos=True), None),
        (_request([5], stop_token_ids=(5,)), FinishReason.STOP),
        (_request([9], ignore_eos=True, stop_token_ids=(9,)), FinishReason.STOP),
        (_request([5], max_tokens=1), FinishReason.LENGTH),
        (_request([9], max_tokens=1), FinishReason.STOP),
        (_request([5] * 7), None),
        (_request([5] * 8), FinishReason.LENGTH),  # 2 + 8 = max_model_len
        (_request([9, 5]), None),  # only the newest token counts
    ],
)
def test_natural_finish(request_: Request, expected: FinishReason | None) -> None:
    assert natural_finish(request_, eos_token_ids=frozenset({9}), max_model_len=10) is expected


def test_prompts_are_validated() -> None:
    validate_prompt([0, 99], vocab_size=100, max_model_len=3)
    with pytest.raises(RequestError, match="no tokens"):
        validate_prompt([], vocab_size=100, max_model_len=3)
    with pytest.raises(RequestError, match=r"too long: 3 tokens.*at most 2"):
        validate_prompt([1, 2, 3], vocab_size=100, max_model_len=3)
    for bad in (-1, 100, 1.0, True):
        with pytest.raises(RequestError, match=r"position 1 .*\[0, 100\)") as caught:
            validate_prompt([1, bad], vocab_size=100, max_model_len=9)  # type: ignore[list-item]
        assert repr(bad) in caught.value.message


def test_a_prompt_becomes_an_array_once() -> None:
    ids = validate_prompt([0, 99], vocab_size=100, max_model_len=3)
    assert ids.dtype == np.int64 and ids.tolist() == [0, 99]
    request = Request(request_id="r", prompt_token_ids=[0, 99], checked_ids=ids)
    assert request.prompt_ids is ids
    assert Request(request_id="r", prompt_token_ids=[0, 99]).prompt_ids.tolist() == [0, 99]


def test_what_an_array_would_take_is_judged_one_by_one() -> None:
    class Special(IntEnum):
        END = 2

    ids = validate_prompt([5, Special.END], vocab_size=100, max_model_len=9)
    assert ids.dtype == np.int64 and ids.tolist() == [5, 2]
    for bad in (np.int64(5), 2**80, "5", None):
        with pytest.raises(RequestError, match="position 1 ") as caught:
            validate_prompt([1, bad], vocab_size=100, max_model_len=9)  # type: ignore[list-item]
        assert repr(bad) in caught.value.message


def test_decisions_load_no_torch() -> None:
    modules = ("config", "request", "paging", "scheduler")
    program = "; ".join(f"import ostinato.engine.{name}" for name in modules)
    program += "; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
