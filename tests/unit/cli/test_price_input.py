"""What graphs cost, from a model's shape and from what engines measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM
from ostinato.cli.price_input import kv_bytes_of, read_graph_price
from ostinato.engine.kvcache import bytes_per_token
from ostinato.errors import ConfigError, ModelNotFoundError, UnknownNameError
from ostinato.testing.tiny_models import write_tiny_model

Command = Callable[..., int]
LIMITS: dict[str, Any] = {"device": "cpu", "max_num_reqs": 4, "max_model_len": 64, "kv_tokens": 256}
CAPTURED = {"verdict": "captured", "pool_bytes": 3 * 2**20, "driver_bytes": 2**20}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_kv_bytes_of_a_model_without_its_weights(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    hf = json.loads((tiny / "config.json").read_text())
    head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    shape = {
        "num_layers": hf["num_hidden_layers"],
        "num_kv_heads": hf["num_key_value_heads"],
        "head_dim": head_dim,
    }
    assert kv_bytes_of(str(tmp_path), dtype="float32") == bytes_per_token(**shape, element_bytes=4)
    assert kv_bytes_of(str(tmp_path), dtype="bfloat16") == bytes_per_token(**shape, element_bytes=2)
    hf["dtype"] = "float16"
    written(tmp_path / "config.json", hf)
    assert kv_bytes_of(str(tmp_path)) == bytes_per_token(**shape, element_bytes=2), "the checkpoint's own"
    with pytest.raises(UnknownNameError, match="float17"):
        kv_bytes_of(str(tmp_path), dtype="float17")
    with pytest.raises(ModelNotFoundError):
        kv_bytes_of(str(tmp_path / "nowhere"))


def test_a_forecast_prices_graphs(
    tiny: Path, tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--device", "cpu", "--max-num-reqs", "4", "--max-model-len", "64")
    assert ostinato_command("memory", "--model", str(tiny), *limits, "--measure", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    path = written(tmp_path / "memory.json", document)
    for ledger in ("measured", "predicted"):
        num_bytes = document[ledger]["graph pool"] + document[ledger]["executables"]
        assert read_graph_price(path) == (pytest.approx(num_bytes / document["graphs"] / 2**20), None)
        document["measured"] = None
        written(path, document)


def test_a_manifest_and_an_engines_stats_price_graphs(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with LLM(str(tiny), manifest=str(path), mode="full_decode_only", **LIMITS) as llm:
        stats = llm.stats()
    keys = json.loads(path.read_text())["keys"].values()
    mib, _ = read_graph_price(path)
    assert mib == pytest.approx(sum(key["pool_bytes"] + key["driver_bytes"] for key in keys) / len(keys) / 2**20)
    graphs = stats["graphs"]
    mib, seconds = read_graph_price(written(tmp_path / "stats.json", {"graphs": graphs}))
    num_bytes = graphs["pool_bytes"] + graphs["executables"]["bytes"]
    assert mib == pytest.approx(num_bytes / len(keys) / 2**20)
    assert seconds == pytest.approx(graphs["capture_seconds"] / len(keys))


def test_the_mean_is_over_captured_keys_and_known_times(tmp_path: Path) -> None:
    keys: dict[str, dict[str, Any]] = {
        "a": CAPTURED | {"seconds": 0.5},
        "b": CAPTURED | {"seconds": 0.25, "pool_bytes": 2**20},
        "c": CAPTURED | {"seconds": 0.0, "pool_bytes": 2**20, "driver_bytes": 0},
        "d": CAPTURED | {"verdict": "failed", "seconds": 9.0},
    }
    path = written(tmp_path / "m.json", {"keys": keys})
    assert read_graph_price(path) == (pytest.approx(7 / 3), pytest.approx(0.375))
    for key in keys.values():
        key.pop("seconds")
    assert read_graph_price(written(path, {"keys": keys}))[1] is None


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"keys": 3},
        {"keys": {}},
        {"keys": {"a": {"verdict": "captured"}}},
        {"keys": {"a": CAPTURED | {"verdict": "failed"}}},
        {"predicted": {"graph pool": 0, "executables": 0}, "measured": None, "graphs": 4},
        {"graphs": {"count": 0, "pool_bytes": 0, "executables": {"bytes": 0}, "capture_seconds": 0}},
        {"graphs": {"count": 3}},
        {"graphs": 4},
        {"predicted": {"graph pool": 5}, "measured": None, "graphs": 4},
        {"predicted": {"graph pool": 5, "executables": 5}, "measured": None, "graphs": 0},
        {"predicted": {"graph pool": float("inf"), "executables": 5}, "measured": None, "graphs": 1},
        {"predicted": {"graph pool": 10**400, "executables": 5}, "measured": None, "graphs": 1},
        {"keys": {"a": CAPTURED | {"seconds": float("inf")}}},
    ],
)
def test_files_without_prices(tmp_path: Path, document: object) -> None:
    path = written(tmp_path / "p.json", document)
    with pytest.raises(ConfigError, match="has no prices of graphs") as caught:
        read_graph_price(path)
    assert str(path) in caught.value.message


def plan(tmp_path: Path, *arguments: object) -> tuple[str, ...]:
    histogram = written(tmp_path / "h.json", {"decode": {"1": 5, "3": 5}, "mixed": {"40": 2}})
    return ("plan", "--histogram", str(histogram), *map(str, arguments))


def test_a_plan_at_measured_prices(
    tiny: Path, tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = written(tmp_path / "m.json", {"keys": {"a": CAPTURED | {"seconds": 0.5}}})
    model = ("--model", tiny, "--dtype", "float32")
    assert ostinato_command(*plan(tmp_path, "--prices", prices, *model, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    token = kv_bytes_of(str(tiny), dtype="float32")
    assert found["price"] == {"mib": 4.0, "capture_seconds": 0.5, "kv_bytes_per_token": token}
    assert found["total"] == {
        "graphs": 3,
        "memory_mib": 12.0,
        "capture_seconds": 1.5,
        "kv_tokens_lost": 12 * 2**20 // token,
    }
    assert (
        found["peers"]["vllm"]["decode"]["kv_tokens_lost"]
        == found["peers"]["vllm"]["decode"]["graphs"] * (4 * 2**20) // token
    )
    assert ostinato_command(*plan(tmp_path, "--prices", prices, *model)) == 0
    shown = capsys.readouterr().out
    assert "KV tokens lost" in shown and "3 graphs: about 12 MiB and 1.5 s to capture" in shown
    assert ostinato_command(*plan(tmp_path)) == 0
    assert "KV tokens" not in capsys.readouterr().out, "not without a model"


def test_assumed_capture_times_are_told(
    tmp_path: Path, ostinato_command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = written(tmp_path / "m.json", {"keys": {"a": CAPTURED}})
    assert ostinato_command(*plan(tmp_path, "--prices", prices, "--json")) == 0
    captured = capsys.readouterr()
    assert "has no capture times: 0.025 s a graph are assumed" in captured.err
    assert json.loads(captured.out)["price"]["mib"] == 4.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prices", "p.json", "--graph-mib", "3"), "--prices and --graph-mib both price a graph"),
        (("--model", "m", "--kv-bytes-per-token", "3"), "--model and --kv-bytes-per-token both price a token"),
        (("--dtype", "float32"), "--dtype goes with --model"),
        (("--graph-mib", "0"), "a graph cannot hold 0 MiB"),
        (("--graph-mib", "1e308"), "a graph cannot hold 1e+308 MiB"),
        (("--kv-bytes-per-token", str(10**400)), "--kv-bytes-per-token is 1000"),
        (("--max-graphs", str(10**400)), "--max-graphs is 1000"),
        (("--prices", "nowhere.json"), "cannot be read"),
    ],
)
def test_prices_that_contradict(
    tmp_path: Path,
    ostinato_command: Command,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert ostinato_command(*plan(tmp_path, *arguments)) == 2
    assert message in capsys.readouterr().err
