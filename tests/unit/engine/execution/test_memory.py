"""Where memory will go, against where it goes, on the simulated backend."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import forecast_memory, load_model, memory_budget
from ostinato.engine.execution.loading import LoadedModel
from ostinato.errors import OutOfMemoryError

LIMITS: dict[str, Any] = {"max_model_len": 128, "max_num_reqs": 64, "max_num_batched_tokens": 512}
SIZES: dict[str, Any] = {"decode_sizes": tuple(range(1, 65, 7)), "token_sizes": tuple(range(32, 513, 48))}


@pytest.fixture
def loaded(tiny_dir: Callable[[str], Path]) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny_dir("llama")), device="cpu", **LIMITS, **SIZES))


def test_predicted_from_a_few_captures_is_near_what_is_measured(loaded: LoadedModel) -> None:
    found = forecast_memory(loaded, is_measured=True)
    assert found.num_samples < found.num_graphs
    assert found.measured is not None
    for owner, num_bytes in found.predicted.items():
        # Small pools are all gaps and fillings; of the whole, a few per cent.
        assert found.measured[owner] == pytest.approx(num_bytes, rel=0.2 if owner == "graph pool" else 0.0), owner
    assert sum(found.measured.values()) == pytest.approx(sum(found.predicted.values()), rel=0.1)
    assert found.predicted["graph pool"] > 0
    assert all(num_bytes >= 0 for num_bytes in (*found.predicted.values(), *found.measured.values()))


def test_tokens_that_fit_follow_the_budget(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    token_bytes = 2 * 2 * 2 * 32 * 4
    whole = forecast_memory(loaded)
    assert whole.kv_tokens == 64 * 128, "no more than requests can use"
    others = sum(whole.predicted.values()) - whole.predicted["KV cache"]
    tight = forecast_memory(loaded, budget_bytes=others + 1001 * token_bytes)
    assert tight.kv_tokens == 976, "61 pages of 16, and the null page"
    assert tight.predicted["KV cache"] == (976 + 16) * token_bytes
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 10**9)
    assert forecast_memory(loaded).kv_tokens == 64 * 128


def test_a_budget_that_cannot_hold_one_request_names_the_knobs(loaded: LoadedModel) -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"128 KV tokens need .* KiB, and 0\.0 MiB of 1\.0 MiB are left"
    ) as caught:
        forecast_memory(loaded, budget_bytes=2**20)
    least = re.search(
        r"the least budget is (\d+) MiB: weights .* MiB, .*sampling state .*, KV cache ", caught.value.message
    )
    assert least, caught.value.message
    assert forecast_memory(loaded, budget_bytes=int(least[1]) * 2**20).kv_tokens >= 128
    with pytest.raises(OutOfMemoryError):
        forecast_memory(loaded, budget_bytes=(int(least[1]) - 1) * 2**20)
    for knob in ("max_num_reqs", "decode_sizes or token_sizes", "max_model_len or kv_tokens", "dtype"):
        assert knob in caught.value.fix
    assert caught.value.fix.count("KiB") == 4


def test_what_was_asked_for_is_what_is_counted(loaded: LoadedModel) -> None:
    config = dataclasses.replace(loaded.config, kv_tokens=1100)
    found = forecast_memory(dataclasses.replace(loaded, config=config))
    assert found.kv_tokens == 1104
    with pytest.raises(OutOfMemoryError, match="1100 KV tokens need"):
        few = sum(found.predicted.values()) - found.predicted["KV cache"] + 1000
        forecast_memory(dataclasses.replace(loaded, config=config), budget_bytes=few)


@pytest.mark.parametrize("mode", ["none", "piecewise", "full_decode_only"])
def test_modes_without_some_kinds_of_graph(loaded: LoadedModel, mode: str) -> None:
    config = dataclasses.replace(loaded.config, mode=mode)
    found = forecast_memory(dataclasses.replace(loaded, config=config), is_measured=True)
    assert found.measured is not None
    assert (found.measured["graph pool"] > 0) is (mode != "none")
    assert found.measured["graph pool"] == pytest.approx(found.predicted["graph pool"], rel=0.2)


def test_the_device_is_left_as_it_was(loaded: LoadedModel) -> None:
    before = {name: tensor.data_ptr() for name, tensor in loaded.model.state_dict().items()}
    forecast_memory(loaded)
    assert {name: tensor.data_ptr() for name, tensor in loaded.model.state_dict().items()} == before
    assert torch.isfinite(loaded.model.embedding).all()
