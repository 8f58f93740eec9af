"""The size of the KV cache from free memory, and refusals that say which knob gives how much."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import memory_budget
from ostinato.engine.execution.memory_budget import available_bytes, check_weights_fit, choose_kv_tokens
from ostinato.engine.models import ModelConfig
from ostinato.errors import OutOfMemoryError
from ostinato.testing.tiny_models import tiny_config

MODEL = ModelConfig.from_hf(tiny_config("llama"))
TOKEN_BYTES = 2 * 2 * 2 * 32 * 4  # key and value, layers, heads, head size, float32
CONFIG = EngineConfig(page_size=16, max_model_len=100, max_num_reqs=4, max_num_batched_tokens=64)
CPU = torch.device("cpu")


def set_available(patch: pytest.MonkeyPatch, tokens: float) -> None:
    """Free memory of which half, the share of the cache on a CPU, holds ``tokens`` tokens."""
    patch.setattr(memory_budget, "available_bytes", lambda _device: int(2 * tokens * TOKEN_BYTES))


def choose(**changes: int) -> int:
    return choose_kv_tokens(dataclasses.replace(CONFIG, **changes), MODEL, element_bytes=4, device=CPU)


def test_as_many_as_all_requests_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    set_available(monkeypatch, 1e6)
    assert choose() == 4 * 112  # 100 tokens lie in 7 pages


def test_no_more_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    set_available(monkeypatch, 200)
    assert choose() == 176  # 12 pages, the null page one of them


def test_what_was_asked_for_in_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    set_available(monkeypatch, 1e6)
    assert choose(kv_tokens=100) == 112
    assert choose(kv_tokens=112) == 112


@pytest.mark.parametrize(("changes", "knob"), [({"kv_tokens": 1000}, "kv_tokens"), ({}, "max_model_len")])
def test_what_does_not_fit_is_refused_with_numbers(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], knob: str
) -> None:
    set_available(monkeypatch, 100)
    with pytest.raises(OutOfMemoryError) as caught:
        choose(**changes)
    wanted = 1008 if changes else 112
    assert f"{wanted} tokens" in caught.value.message and "80 tokens fit" in caught.value.message
    assert knob in caught.value.fix and "MiB" in caught.value.fix


def test_no_memory_at_all_is_no_negative_number(monkeypatch: pytest.MonkeyPatch) -> None:
    set_available(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError, match=r" 0 tokens fit"):
        choose()


def test_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 2**30)
    check_weights_fit(2**30, CPU)
    with pytest.raises(OutOfMemoryError, match=r"need 1\.50 GiB and cpu has 1\.00 GiB"):
        check_weights_fit(3 * 2**29, CPU)


def test_the_machine_has_memory() -> None:
    assert 2**24 < available_bytes(CPU) < 2**50
