"""EngineConfig: bounds, names, contradictions, and how "auto" is resolved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ostinato.engine.config import DEFAULT_MODEL, EngineConfig, resolve_engine_config
from ostinato.errors import ConfigError, UnknownNameError
from ostinato.runtime.planning import PRESETS, preset_ladder


def test_defaults_name_the_default_model_and_leave_the_rest_to_be_resolved() -> None:
    config = EngineConfig()
    assert config.model == DEFAULT_MODEL
    assert (config.device, config.dtype, config.mode, config.attention) == ("auto",) * 4
    assert config.max_num_reqs is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto"])
def test_every_mode_is_accepted(mode: str) -> None:
    assert EngineConfig(mode=mode).mode == mode


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("mode", "ful", "full"),
        ("dtype", "float8", "float16"),
        ("load_format", "dumy", "dummy"),
        ("attention", "trition", "triton"),
        ("device", "cuda:x", "cuda:N"),
        ("device", "cuda:\u0663", "cuda:N"),
        ("device", "cuda:99999999999999999999", "cuda:N"),
        ("device", "cudaa", "cuda"),
        ("mode", None, "piecewise"),
        ("decode_sizes", "vlm", "vllm"),
        ("token_sizes", "12", "sglang"),
        ("token_sizes", "tensorrt-llm", "sglang"),
    ],
)
def test_unknown_names_list_the_valid_ones(field: str, value: Any, valid: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        EngineConfig(**{field: value})
    assert field in str(caught.value)
    assert valid in caught.value.fix


def test_the_ladders_names_are_those_that_the_runtime_knows() -> None:
    for field, kind in (("decode_sizes", "decode"), ("token_sizes", "mixed")):
        for name in PRESETS:
            if preset_ladder(name, kind, largest=1):
                assert getattr(EngineConfig(**{field: name}), field) == name
            else:
                with pytest.raises(UnknownNameError):
                    EngineConfig(**{field: name})


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'piecewise'"):
        EngineConfig(mode="piecewize")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_size", 0),
        ("page_size", None),
        ("max_model_len", 0),
        ("max_num_reqs", -1),
        ("max_num_reqs", True),
        ("max_num_batched_tokens", 1.5),
        ("kv_tokens", 0),
        ("kv_tokens", 15),
        ("seed", -1),
        ("seed", 2**63),
        ("model", ""),
        ("decode_sizes", ()),
        ("decode_sizes", (1, 0)),
        ("decode_sizes", (1, 2.0)),
        ("decode_sizes", 4),
        ("token_sizes", b"12"),
    ],
)
def test_values_out_of_range_name_the_field_and_the_value(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{field: value})
    assert field in caught.value.message
    assert caught.value.context["field"] == field


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("shadow_share", {"shadow_every": 2}),
        ("capture_share", {"capture": "background"}),
        ("capture_share", {"on_moved": "recapture"}),
    ],
)
def test_a_share_that_nothing_takes_is_an_error(name: str, needs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be left out without") as caught:
        EngineConfig(**{name: 0.5})
    assert next(iter(needs)) in caught.value.message and f"leave out {name}" in caught.value.fix
    assert getattr(EngineConfig(**{name: 0.5}, **needs), name) == 0.5
    assert getattr(EngineConfig(**{name: 0.1}), name) == 0.1, "the default changes nothing"


def test_limits_of_what_is_not_made_are_dropped_with_a_reason() -> None:
    settings = {"compile_max_tokens": 64, "full_mixed_max_tokens": 32}
    resolved, reasons = resolve_engine_config(EngineConfig(mode="piecewise", **settings), "cpu", 2048, "float32")
    assert (resolved.compile_max_tokens, resolved.full_mixed_max_tokens) == (None, 0)
    assert reasons["compile_max_tokens"] == "None: nothing is compiled"
    assert reasons["full_mixed_max_tokens"].startswith("0: mode piecewise has no")
    used = EngineConfig(mode="full_and_piecewise", compile="inductor", **settings)
    resolved, reasons = resolve_engine_config(used, "cpu", 2048, "float32")
    assert (resolved.compile_max_tokens, resolved.full_mixed_max_tokens) == (64, 32)
    assert not set(settings) & set(reasons)


def test_sizes_are_sorted_and_made_unique() -> None:
    config = EngineConfig(decode_sizes=(4, 1, 4, 2), token_sizes=(64, 16))
    assert config.decode_sizes == (1, 2, 4)
    assert config.token_sizes == (16, 64)


@pytest.mark.parametrize(
    ("sizes", "limit"), [("decode_sizes", "max_num_reqs"), ("token_sizes", "max_num_batched_tokens")]
)
def test_sizes_may_reach_their_limit_but_not_pass_it(sizes: str, limit: str) -> None:
    EngineConfig(**{sizes: (1, 8), limit: 8})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=limit):
        EngineConfig(**{sizes: (1, 9), limit: 8})  # type: ignore[arg-type]


def test_sizes_are_checked_against_resolved_limits_too() -> None:
    with pytest.raises(ConfigError, match="max_num_reqs"):
        resolve_engine_config(EngineConfig(decode_sizes=(17,)), "cpu", 2048, "bfloat16")


def test_every_running_request_must_be_able_to_decode() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        EngineConfig(max_num_reqs=9, max_num_batched_tokens=8)


def test_resolution_on_a_cpu() -> None:
    resolved, reasons = resolve_engine_config(EngineConfig(), "cpu", 8192, "bfloat16")
    assert (resolved.device, resolved.dtype, resolved.attention) == ("cpu", "float32", "torch")
    assert (resolved.max_model_len, resolved.max_num_reqs, resolved.max_num_batched_tokens) == (2048, 16, 512)
    assert set(reasons) == {
        "device", "dtype", "full_mixed_max_tokens", "dispatch", "overlap", "attention", "max_model_len", "max_num_reqs",
        "max_num_batched_tokens",
    }  # fmt: skip
    assert reasons["max_model_len"].startswith("2048: ")


def test_resolution_on_cuda() -> None:
    resolved, _ = resolve_engine_config(EngineConfig(), "cuda", 4096, "bfloat16")
    assert (resolved.device, resolved.dtype, resolved.attention) == ("cuda", "bfloat16", "triton")
    assert (resolved.max_model_len, resolved.max_num_reqs, resolved.max_num_batched_tokens) == (4096, 256, 8192)
    assert (resolved.mode, resolved.kv_tokens, resolved.decode_sizes) == ("auto", None, None)


def test_a_stored_dtype_that_cannot_be_computed_in_becomes_bfloat16() -> None:
    resolved, reasons = resolve_engine_config(EngineConfig(), "cuda", 4096, "float8_e4m3fn")
    assert resolved.dtype == "bfloat16"
    assert "float8_e4m3fn" in reasons["dtype"]


def test_what_the_user_chose_stays_and_has_no_reason() -> None:
    chosen = EngineConfig(
        device="cuda:1", dtype="float16", attention="torch", max_model_len=100, max_num_reqs=3,
        max_num_batched_tokens=7, overlap=False, full_mixed_max_tokens=0,
        mode="full", kv_tokens=64, seed=5, dispatch="order",
    )  # fmt: skip
    assert resolve_engine_config(chosen, "cuda", 4096, "bfloat16") == (chosen, {})


def test_resolving_twice_changes_nothing() -> None:
    once, _ = resolve_engine_config(EngineConfig(), "cpu", 4096, "bfloat16")
    assert resolve_engine_config(once, "cpu", 4096, "bfloat16") == (once, {})


def test_default_limits_adapt_to_the_explicit_one() -> None:
    few_tokens, _ = resolve_engine_config(EngineConfig(max_num_batched_tokens=64), "cuda", 4096, "bfloat16")
    assert few_tokens.max_num_reqs == 64
    many_reqs, reasons = resolve_engine_config(EngineConfig(max_num_reqs=1000), "cpu", 4096, "bfloat16")
    assert many_reqs.max_num_batched_tokens == 1000
    assert "max_num_reqs" in reasons["max_num_batched_tokens"]


def test_contradictions_with_machine_and_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="device"):
        resolve_engine_config(EngineConfig(device="cuda:0"), "cpu", 4096, "bfloat16")
    with pytest.raises(ConfigError, match="4096"):
        resolve_engine_config(EngineConfig(max_model_len=4097), "cpu", 4096, "bfloat16")
    with pytest.raises(UnknownNameError, match="device kind"):
        resolve_engine_config(EngineConfig(), "xpu", 4096, "bfloat16")  # type: ignore[arg-type]


def test_small_mixed_steps_are_full_for_auto_where_attention_allows_it() -> None:
    for chosen, device, expected in (
        (EngineConfig(), "cuda", 1024),
        (EngineConfig(), "cpu", 0),
        (EngineConfig(attention="torch"), "cuda", 0),
        (EngineConfig(mode="full_and_piecewise"), "cuda", 0),
        (EngineConfig(mode="full_and_piecewise", full_mixed_max_tokens=64), "cuda", 64),
    ):
        resolved, _ = resolve_engine_config(chosen, device, 4096, "bfloat16")
        assert resolved.full_mixed_max_tokens == expected


@pytest.mark.parametrize("name", ["max_num_reqs", "kv_tokens", "shadow_every", "max_model_len"])
def test_counts_that_no_kernel_could_hold_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} must be an integer >= [01] and <= (2147483647|9223372036854775807),"
    ) as caught:
        EngineConfig(**{name: 10**23})
    assert caught.value.fix
