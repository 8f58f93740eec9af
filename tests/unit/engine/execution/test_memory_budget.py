"""The size of the KV cache from free memory, and refusals that say which knob gives how much."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import memory_budget
from ostinato.engine.execution.memory_budget import (
    asked_kv_tokens,
    available_bytes,
    check_weights_fit,
    kv_budget_bytes,
    most_kv_tokens,
)
from ostinato.errors import OutOfMemoryError

TOKEN_BYTES = 2 * 2 * 2 * 32 * 4
CONFIG = EngineConfig(page_size=16, max_model_len=100, max_num_reqs=4, max_num_batched_tokens=64)
CPU = torch.device("cpu")


def choose(tokens: float, **changes: int) -> int:
    """With memory for ``tokens`` tokens."""
    config = dataclasses.replace(CONFIG, **changes)
    function = most_kv_tokens if config.kv_tokens is None else asked_kv_tokens
    return function(config, budget_bytes=int(tokens * TOKEN_BYTES), token_bytes=TOKEN_BYTES)


def test_as_many_as_all_requests_can_use() -> None:
    assert choose(1e6) == 4 * 112  # 100 tokens lie in 7 pages


def test_no_more_than_fit() -> None:
    assert choose(200) == 176  # 12 pages, the null page one of them


def test_what_was_asked_for_in_whole_pages() -> None:
    assert choose(1e6, kv_tokens=100) == 112
    assert choose(1e6, kv_tokens=112) == 112


@pytest.mark.parametrize(("changes", "knob"), [({"kv_tokens": 1000}, "kv_tokens"), ({}, "max_model_len")])
def test_what_does_not_fit_is_refused_with_numbers(changes: dict[str, int], knob: str) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        choose(100, **changes)
    wanted = 1008 if changes else 112
    assert f"{wanted} tokens" in caught.value.message and "80 tokens fit" in caught.value.message
    assert knob in caught.value.fix and "MiB" in caught.value.fix


def test_no_memory_at_all_is_no_negative_number() -> None:
    with pytest.raises(OutOfMemoryError, match=r" 0 tokens fit"):
        choose(0)


def test_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 1000)
    assert kv_budget_bytes(CPU, 0.85) == 850


def test_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 2**30)
    check_weights_fit(2**30, CPU)
    with pytest.raises(OutOfMemoryError, match=r"need 1\.50 GiB and cpu has 1\.00 GiB"):
        check_weights_fit(3 * 2**29, CPU)


def test_the_machine_has_memory() -> None:
    assert 2**24 < available_bytes(CPU) < 2**50
