"""``partition="auto"``: the partition whose chosen ways cost least, by a file of costs that has several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution import StoredCosts
from ostinato.engine.execution.model_identity import model_identity
from ostinato.engine.execution.stored_costs import settle_partition
from ostinato.engine.models import ModelConfig
from ostinato.errors import ConfigError, ForeignCostsError
from ostinato.runtime import BatchKind, CostSample, CostTable
from ostinato.testing.tiny_models import write_tiny_model

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"max_num_reqs": 2, "max_num_batched_tokens": 32, "max_model_len": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), has_weights=False, has_tokenizer=False)


def config_for(model: Path, **settings: Any) -> tuple[EngineConfig, ModelConfig]:
    shape = ModelConfig.from_hf(json.loads((model / "config.json").read_text()))
    asked = EngineConfig(model=str(model), load_format="dummy", device="cpu", **SIZES, **settings)
    return resolve_engine_config(asked, "cpu", shape.max_model_len, "float32")[0], shape


def table(piecewise_ms: Mapping[int, float] | float, *, eager_ms: float = 9.0) -> CostTable:
    """Of steps with prompts; decodes cost alike everywhere. Torch attention has a tier of 64 tokens here."""
    pieces = piecewise_ms if isinstance(piecewise_ms, Mapping) else dict.fromkeys((16, 32), piecewise_ms)
    prompts, decodes = BatchKind(), BatchKind(uniform_query_len=1, kv_tier=64)
    samples = [CostSample(kind=prompts, way="piecewise graph", size=n, ms=ms) for n, ms in pieces.items()]
    samples += [CostSample(kind=prompts, way="eager", size=n, ms=eager_ms) for n in (16, 32)]
    samples += [CostSample(kind=decodes, way="full decode graph", size=n, ms=1.0) for n in (1, 2)]
    return CostTable(tuple(samples))


def settled(model: Path, path: Path, tables: Mapping[str, CostTable]) -> tuple[str, str | None]:
    for partition, found in tables.items():
        config, shape = config_for(model, costs=str(path), partition=partition)
        StoredCosts(config, CPU, shape).save(found)
    config, shape = config_for(model, costs=str(path), partition="auto")
    chosen, why = settle_partition(config, CPU, shape)
    assert dataclasses.replace(chosen, partition="auto") == config, "nothing else changes"
    return chosen.partition, why


def test_the_cheapest_is_taken_and_the_reason_says_by_how_much(model: Path, tmp_path: Path) -> None:
    partition, why = settled(model, tmp_path / "costs.json", {"breakable": table(5.0), "fx": table(4.0)})
    assert partition == "fx"
    assert why is not None and why.startswith("fx: ") and why.endswith("fx 0.0 %, breakable 12.5 %"), why


def test_every_bucket_counts_alike_and_by_its_chosen_way(model: Path, tmp_path: Path) -> None:
    """fx has a graph that is far slower at 32 tokens, but eager is there instead of it."""
    slow = table({16: 4.0, 32: 90.0}, eager_ms=5.0)
    partition, why = settled(model, tmp_path / "costs.json", {"breakable": table(5.0, eager_ms=5.0), "fx": slow})
    assert partition == "fx", why


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({}, "has no costs of several partitions"),
        ({"fx": 1.0}, "has no costs of several partitions"),
        ({"breakable": 4.0, "fx": 5.0}, "breakable 0.0 %, fx 12.5 %"),
        ({"breakable": 5.0, "fx": 4.95}, "fx 0.0 %, breakable 0.5 %"),  # two starts differ by more
    ],
)
def test_breakable_unless_another_is_clearly_cheaper(
    model: Path, tmp_path: Path, tables: Mapping[str, float], says: str
) -> None:
    found = {name: table(ms) for name, ms in tables.items()}
    partition, why = settled(model, tmp_path / "costs.json", found)
    assert partition == "breakable" and why is not None and says in why, why


def test_without_a_file_it_is_breakable(model: Path) -> None:
    config, shape = config_for(model, partition="auto")
    chosen, why = settle_partition(config, CPU, shape)
    assert (chosen.partition, why) == ("breakable", "breakable: no costs are named")


def test_a_partition_that_was_asked_for_needs_no_reason(model: Path) -> None:
    config, shape = config_for(model, partition="fx")
    assert settle_partition(config, CPU, shape) == (config, None)


def test_an_engine_takes_it_and_says_why(model: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "costs.json")
    given = {"model": str(model), "load_format": "dummy", "device": "cpu", "costs": path, **SIZES}
    for partition in ("breakable", "fx"):
        with LLM(partition=partition, **given):
            pass
    with LLM(partition="auto", **given) as llm:
        assert llm.partition == llm.config.partition in ("breakable", "fx")
        why = llm.stats()["config"]["reasons"]["partition"]
        assert (
            why.startswith(f"{llm.partition}: above the least measured cost")
            and "costs" not in llm.stats()["config"]["reasons"]
        )
        assert llm.generate([[1, 2, 3]])[0].error is None


def test_files_that_cannot_be_used_are_refused_before_weights_are_read(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    settled(model, path, {"breakable": table(5.0), "fx": table(4.0)})
    document = json.loads(path.read_text())
    config, shape = config_for(model, costs=str(path), partition="auto")
    path.write_text(json.dumps(document | {"origin": document["origin"] | {"hardware": "NVIDIA H200"}}))
    with pytest.raises(ForeignCostsError, match="hardware NVIDIA H200"):
        settle_partition(config, CPU, shape)
    path.write_text(json.dumps(document))
    with pytest.raises(ForeignCostsError, match=rf"model config {model_identity(shape)}, and here it is llama"):
        settle_partition(config, CPU, dataclasses.replace(shape, hidden_size=2 * shape.hidden_size))
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        settle_partition(config, CPU, shape)
