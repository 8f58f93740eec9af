"""Each scenario on a tiny model: rows with the promised columns, and a row that fails keeps the others."""

from __future__ import annotations

import dataclasses
import io
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.bench import BenchConfig, Evidence, run_bench, startup_child
from ostinato.bench.end_to_end import decode_host_us
from ostinato.bench.peers import registry
from ostinato.bench.run import Run
from ostinato.bench.scenarios import decode, startup
from ostinato.bench.scenarios.dispatch import extended, judged, kinds_of_steps, losses, merged
from ostinato.engine.config import EngineConfig
from ostinato.engine.text import TextState
from ostinato.errors import ConfigError, RequestError
from ostinato.runtime import BatchKind, CostSample, CostTable, GraphKey, LiveBatch, Reason, Rejection, RuntimeMode
from ostinato.runtime.dispatch import decision_for
from ostinato.testing.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny", has_weights=False, has_tokenizer=False)


def run(model: Path, scenario: str, *, json_out: str | None = None, engine: Any = None, **settings: Any) -> Evidence:
    config = EngineConfig(model=str(model), load_format="dummy", device="cpu", **(engine or {}))
    return run_bench(scenario, BenchConfig(engine=config, **settings), json_out=json_out)


def test_host_time_of_a_step_is_what_longer_answers_take_more() -> None:
    uncounted, short, long = [9.0, 9.0], 0.010, 0.010 + 128 * 150e-6
    assert decode_host_us([*uncounted, short, long, short, long]) == [pytest.approx(150.0)] * 2


def test_decode(model: Path, tmp_path: Path) -> None:
    found = run(model, "decode", json_out=f"{tmp_path}/", modes=("full_and_piecewise", "none"), batches=(2,), repeats=1,
                prompt_tokens=8, peers=("vllm",))  # fmt: skip
    assert found.failed == {}
    graph, eager = found.rows
    assert (graph["mode"], graph["batch"], graph["runtime_mode"]) == ("full_and_piecewise", 2, "FULL")
    assert (eager["mode"], eager["runtime_mode"], eager["device_ms"]) == ("none", "EAGER", None)
    assert graph["tpot_ms"] > graph["floor_ms"] > graph["weight_floor_ms"] > 0
    assert 0 <= graph["idle_percent"] <= 100 and graph["kernels"] > 50
    assert graph["host_us"] is None, "a CPU computes where the host works"
    assert eager["speedup_over_eager"] == 1
    assert set(found.skipped) == {"vllm"}
    assert found.path is not None and found.path.name.startswith("decode_tiny_")
    document = json.loads(found.path.read_text())
    assert {"bench", "model", "hardware", "versions", "command", "config", "repeats", "rows", "date"} <= set(document)
    assert document["config"]["none"]["resolved_mode"] == "none"
    assert str(tmp_path) not in found.path.read_text()


def test_streams_are_timed_at_the_largest_batch(model: Path) -> None:
    found = run(model, "decode", modes=("none",), batches=(1, 3), repeats=1, prompt_tokens=4)
    assert found.failed == {}
    one, most = found.rows
    assert "stream_tpot_ms" not in one and most["stream_tpot_ms"] > 0


@pytest.mark.parametrize(
    ("scenario", "settings"),
    [
        ("decode", {"batches": (2,), "modes": ("none",), "prompt_tokens": 4}),
        ("prefill", {"tokens": (5,), "modes": ("none",)}),
        ("serve", {"rates": (200.0,), "num_requests": 2, "prompt_tokens": 5, "output_tokens": 3, "modes": ("none",)}),
        ("surface", {"variants": ("eager",), "tokens": (2, 4), "requests": (2,)}),
    ],
)
def test_every_answer_of_a_model_without_a_tokenizer_is_made_text(
    model: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, settings: Any
) -> None:
    with_text: set[TextState] = set()
    closed: list[bool] = []  # of each request: whether it had text
    push, close = TextState.push, TextState.close

    def noted_push(self: TextState, token_id: int) -> tuple[str, bool]:
        text, has_met_stop = push(self, token_id)
        if text:
            with_text.add(self)
        return text, has_met_stop

    def noted(self: TextState, **kwargs: Any) -> str:
        text = close(self, **kwargs)
        closed.append(bool(text) or self in with_text)
        return text

    monkeypatch.setattr(TextState, "push", noted_push)
    monkeypatch.setattr(TextState, "close", noted)
    found = run(model, scenario, repeats=1, **settings)
    assert found.failed == {} and found.skipped == {}
    assert all(row["text"] is True for row in found.rows)
    assert any("made-up byte-level one of 272 tokens" in note for note in found.notes)
    # One token in 271 is the end token, which is ignored and gives no text.
    assert len(closed) > 1 and sum(closed) >= 0.8 * len(closed)


def test_text_is_the_models_own_where_it_has_a_tokenizer(tmp_path: Path) -> None:
    own = write_tiny_model(tmp_path / "own", has_weights=False)
    found = run(own, "prefill", modes=("none",), tokens=(5,), repeats=1)
    assert found.rows[0]["text"] is True and any("the model's own tokenizer" in note for note in found.notes)


def test_a_run_without_text_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.made_up_text.find_spec", lambda name: None)
    found = run(model, "prefill", modes=("none",), tokens=(5,), repeats=1)
    assert found.rows[0]["text"] is False and "tokenizers is not installed" in found.skipped["text"]


def test_prefill(model: Path) -> None:
    found = run(model, "prefill", modes=("piecewise",), tokens=(5, 20), repeats=1)
    assert [(row["tokens"], row["runtime_mode"]) for row in found.rows] == [(5, "PIECEWISE"), (20, "PIECEWISE")]
    assert all(row["ttft_ms"] > row["floor_ms"] > 0 for row in found.rows)


def test_surface(model: Path) -> None:
    found = run(model, "surface", variants=("eager", "breakable"), tokens=(2, 8), requests=(1, 2), repeats=1)
    assert found.failed == {}
    rows = {(row["variant"], row["tokens"], row["requests"]): row for row in found.rows}
    assert len(rows) == 8
    assert (rows["eager", 2, 2]["kind"], rows["eager", 8, 2]["kind"]) == ("decode", "prefill")
    one = rows["breakable", 8, 1]
    assert one["runtime_mode"] == "PIECEWISE" and one["segments"] == 3 and one["graphs"] == 2
    assert {"replay_ms", "eager_ms", "capture_seconds", "pool_bytes", "nodes"} <= set(one)
    assert "eager_ms" not in rows["eager", 8, 1]
    assert "replay_ms" not in rows["breakable", 8, 2]  # captured with one prompt, not with two
    assert [(c["variant"], c["requests"]) for c in found.extra["crossovers"]] == [("breakable", 1), ("breakable", 2)]


def test_surface_of_full_graphs_replays_the_last_step(model: Path) -> None:
    found = run(model, "surface", variants=("full",), tokens=(2,), requests=(2,), repeats=1)
    (row,) = found.rows
    assert (row["kind"], row["runtime_mode"], row["segments"]) == ("decode", "FULL", 1)
    assert row["replay_ms"] > 0 and "eager_ms" not in row


def test_checks(model: Path) -> None:
    found = run(model, "checks", repeats=2)
    assert found.failed == {}
    by_level = {level: [row for row in found.rows if row["guards"] == level] for level in ("always", "sampled", "off")}
    for level, rows in by_level.items():
        kinds = [row["callable"] for row in rows]
        assert kinds[:2] == ["model, FULL decode", "model, PIECEWISE"] and kinds[2].startswith("20 inputs, "), kinds
        assert all((row["watched"] == 0) == (level == "off") for row in rows)
        assert all(row["both_us"] >= row["guards_us"] > 0 for row in rows)
    assert by_level["always"][2]["watched"] > 10, "the weights that the callable is said to read"


def test_dispatch(model: Path) -> None:
    """As users run by default: `auto`."""
    found = run(model, "dispatch", tokens=(16,), repeats=1, engine={"max_num_reqs": 4})
    assert found.failed == {}
    assert [(row["kind"], row["weighed"], row["one_way"]) for row in found.rows] == [
        ("decode", 4, 0),
        ("prefill", 16, 0),
    ]
    assert {(row["mode"], row["ladder"]) for row in found.rows} == {("auto", "default")}
    assert any("timed one by one" in note for note in found.notes), "as a CPU runs them"
    for row in found.rows:
        assert row["worst_percent"] + 0.01 >= row["mean_percent"] >= 0 and row["order_worst_percent"] >= 0
        assert row["typical_worst_percent"] + 0.01 >= row["typical_mean_percent"] >= 0
        assert sum(count for name, count in row.items() if name.startswith("num_")) == row["sizes"]
    decided, judging = (CostTable.from_dict(found.extra["costs"]["auto"][name]) for name in ("decided", "judged"))
    assert len(decided.samples) == len(judging.samples) > 0 and decided != judging
    measured = [CostTable.from_dict(each) for each in found.extra["costs"]["auto"]["measurements"]]
    assert len(measured) == 3 and merged(measured, min) == judging


def test_requests_beyond_the_slots_of_full_graphs_are_judged_apart() -> None:
    decode = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=64, num_reqs=64, uniform_query_len=1)
    full = [GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n, num_reqs=min(n, 16)) for n in (8, 32)]
    kinds = kinds_of_steps([decode, *full], most_tokens=40, most_reqs=64)
    assert {name: len(lives) for name, lives in kinds.items()} == {
        "decode": 64,
        "prefill": 40,
        "mixed, 17 requests": 24,
    }
    assert set(kinds_of_steps([decode], most_tokens=40, most_reqs=64)) == {"decode", "prefill"}
    assert set(kinds_of_steps(full, most_tokens=40, most_reqs=16)) == {"decode", "prefill"}


def test_dispatch_above_the_default_ladder(model: Path) -> None:
    limits = {"max_num_reqs": 2, "token_sizes": (4, 8)}
    found = run(model, "dispatch", tokens=(20,), modes=("piecewise",), repeats=1, engine=limits)
    assert found.failed == {}
    rows = {(row["kind"], row["ladder"]): row for row in found.rows}
    default, longer = rows["prefill", "default"], rows["prefill", "extended"]
    assert (default["sizes"], default["weighed"], default["one_way"]) == (20, 8, 12)
    assert (longer["sizes"], longer["weighed"], longer["one_way"]) == (20, 20, 0)
    assert default["num_EAGER"] >= 12
    assert any("ends at 8" in note and "[16, 20]" in note for note in found.notes)


@pytest.mark.parametrize(
    ("ladder", "most", "expected"),
    [
        ((1, 2, 4), 4, (1, 2, 4)),
        ((8, 10, 12, 14, 16), 64, (8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)),
        ((8, 12, 16), 20, (8, 12, 16, 20)),
        ((8,), 30, (8, 16, 30)),
        ((32,), 5, (5,)),
    ],
)
def test_ladders_go_on_as_they_end(ladder: tuple[int, ...], most: int, expected: tuple[int, ...]) -> None:
    assert extended(ladder, most) == expected


def test_a_size_with_one_way_to_run_it_is_no_choice() -> None:
    only = decision_for(LiveBatch(num_tokens=5), None)
    row = judged([only, only], CostTable())
    assert (row["sizes"], row["weighed"], row["one_way"]) == (2, 0, 2) and "worst_percent" not in row


def test_executables(model: Path) -> None:
    sizes = {"decode_sizes": (1, 2, 4), "token_sizes": (4, 8), "max_num_reqs": 4}
    found = run(model, "executables", repeats=3, engine=sizes)
    assert found.failed == {}
    own, shared = found.rows[:2]
    assert (own["executables"], own["graphs"]) == ("own", shared["graphs"])
    assert own["num_executables"] == own["segments"] > shared["num_executables"] and own["nodes"] > shared["nodes"]
    times = {(row["executables"], row["kind"]): row for row in found.rows[2:]}
    assert len(times) == 4, "own and shared, decode and piecewise"
    for (setting, _), row in times.items():
        assert min(row["same_host_us"], row["other_host_us"], row["same_ms"], row["other_ms"]) > 0
        assert row["switches"] == (0 if setting == "own" else row["segments"])
        assert ("switch_host_us" in row and "switch_ms" in row) == (setting == "shared")


def test_executables_of_an_attention_that_plans_each_step(model: Path) -> None:
    with pytest.raises(ConfigError, match="flashinfer plans one"):
        run(model, "executables", engine={"attention": "flashinfer"})


def test_losses_are_told_by_other_times_than_the_decision_was_made_by() -> None:
    small, large = (GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=n) for n in (8, 16))
    live = LiveBatch(num_tokens=5)
    rejected = Rejection("large", Reason.LATER_IN_ORDER, "", key=large, cost_ms=9.0)
    decision = dataclasses.replace(decision_for(live, small), alternatives=(rejected,), cost_ms=1.0)
    kind = BatchKind()
    times = CostTable(tuple(CostSample(kind=kind, way="full graph", size=n, ms=ms) for n, ms in ((8, 3.0), (16, 2.0))))
    assert losses([decision], times) == {5: (pytest.approx(50.0), pytest.approx(50.0))}


def test_disturbed_measurements_judge_nobody() -> None:
    def table(*ms: float) -> CostTable:
        return CostTable(tuple(CostSample(kind=BatchKind(), way="eager", size=n, ms=t) for n, t in enumerate(ms, 1)))

    tables = [table(1.0, 9.0), table(9.0, 2.1), table(1.1, 9.5)]
    assert merged(tables, min) == table(1.0, 2.1) and merged(tables, statistics.median) == table(1.1, 9.0)
    assert merged([table(1.0), table(9.0, 2.1)], min) == table(1.0, 2.1), (
        "eager between buckets may be timed in some alone"
    )


def test_segments(model: Path) -> None:
    found = run(model, "segments", tokens=(4,), segments=(1, 3), repeats=10, peers=("breakable-cuda-graphs",))
    assert found.failed == {}
    assert [(row["callable"], row["segments"], row["breaks"]) for row in found.rows] == [
        ("model", 3, 2),
        ("chain, empty breaks", 1, 0),
        ("chain, empty breaks", 3, 2),
        ("chain, one kernel a break", 1, 0),
        ("chain, one kernel a break", 3, 2),
    ]
    names = [f"{level}_us{of}" for level in ("on", "sampled", "off", "bare") for of in ("", "_per_segment")]
    assert all(row[name] > 0 for row in found.rows for name in names)
    assert set(found.skipped) == {"breakable-cuda-graphs"}


def test_startup(model: Path) -> None:
    found = run(model, "startup", modes=("piecewise",), repeats=1, engine={"token_sizes": (16,)})
    assert found.failed == {}
    (row,) = found.rows
    stages = ("interpreter", "imports", "weights", "warm_up", "capture", "first_token")
    assert all(row[f"{stage}_s"] > 0 for stage in stages)
    assert sum(row[f"{stage}_s"] for stage in stages) == pytest.approx(row["total_s"], abs=0.01)
    assert row["num_graphs"] == 1


@pytest.mark.parametrize("writes", [True, False])
def test_a_start_that_compiles_every_source_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writes: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))  # nothing is cached there
    monkeypatch.setattr(startup, "_row", lambda run, mode: {"mode": mode})
    found = run(model, "startup", modes=("piecewise",), repeats=1)
    assert any("byte code" in note for note in found.notes) is not writes


def test_a_refused_prompt_is_no_first_token(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": str(model), "load_format": "dummy", "device": "cpu", "mode": "none", "max_model_len": 8}
    task = json.dumps({"settings": settings, "prompt": [1] * 8})
    monkeypatch.setattr("sys.stdin", io.StringIO(task))
    with pytest.raises(RequestError, match="the prompt is too long"):
        startup_child.main()


def test_serve_at_a_rate_and_from_a_trace(model: Path, tmp_path: Path) -> None:
    found = run(model, "serve", modes=("none",), rates=(200.0,), num_requests=4, prompt_tokens=5, output_tokens=3)
    (row,) = found.rows
    assert (row["num_requests"], row["num_failed"], row["num_skipped"]) == (4, 0, 0)
    trace = tmp_path / "some.csv"
    lines = ["2023-11-16 18:17:03.5,5,2", "2023-11-16 18:17:03.6,9000,2"]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    (row,) = run(model, "serve", modes=("none",), trace=trace).rows
    assert (row["load"], row["num_requests"], row["num_skipped"]) == ("some x1", 1, 1)


def test_background(model: Path) -> None:
    # 4 * 5 tokens fit: on a busy machine prompts queue up until all four run in one step.
    sizes = {"decode_sizes": (1, 4), "token_sizes": (20,), "max_num_reqs": 4, "capture": "background"}
    found = run(
        model, "background", rates=(50.0,), prompt_tokens=5, output_tokens=3, engine={**sizes, "capture_share": 0.9}
    )
    assert found.failed == {}
    parts = {(row["capture"], row["part"]): row for row in found.rows if row["part"] != "window"}
    assert set(parts) == {("background", "all"), ("background", "settled"), ("eager", "all")}
    windows = {name: [row for row in found.rows if row["capture"] == name and row["part"] == "window"]
               for name in ("background", "eager")}  # fmt: skip
    late, early = windows["background"], windows["eager"]
    assert late[0]["hit_percent"] < 100, "it answers before there are graphs"
    assert [row["pending"] for row in late] == sorted((row["pending"] for row in late), reverse=True)
    assert late[-1]["pending"] == 0 and sum(row["captured"] for row in late) == late[-1]["graphs"] > 0
    assert parts["background", "settled"]["hit_percent"] == parts["eager", "all"]["hit_percent"] == 100
    assert parts["background", "all"]["hit_percent"] < 100
    assert all(row["captured"] == 0 and row["graphs"] == late[-1]["graphs"] for row in early)
    for row in (*late[1:], *early[1:]):
        assert row["seconds"] > 0 and row["steps"] + row["captured"] > 0
    assert parts["eager", "all"]["num_requests"] == parts["background", "all"]["num_requests"]
    assert parts["background", "all"]["ttft_ms_p50"] > 0 and parts["background", "all"]["tpot_ms_p99"] > 0


def test_a_row_that_fails_keeps_the_others(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = decode._row

    def sometimes(run: Any, llm: Any, mode: str, batch: int, prompt_tokens: int) -> dict[str, Any]:
        if batch == 2:
            raise RuntimeError("out of luck")
        return original(run, llm, mode, batch, prompt_tokens)

    monkeypatch.setattr(decode, "_row", sometimes)
    out = tmp_path / "x.json"
    run(model, "decode", json_out=str(out), modes=("none",), batches=(2, 1), repeats=1, prompt_tokens=4)
    document = json.loads(out.read_text())
    assert [row["batch"] for row in document["rows"]] == [1]
    assert document["failed"] == {"none batch 2": "RuntimeError: out of luck"}


def test_a_peer_gets_the_same_prompts_and_definition(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, int]] = []

    class FakePeer:
        def generate_seconds(self, prompts: Any, num_tokens: int) -> float:
            calls.append((len(prompts), len(prompts[0]), num_tokens))
            return 0.1 + 0.002 * num_tokens

        def close(self) -> None:
            calls.append((0, 0, 0))

    monkeypatch.setattr("ostinato.bench.end_to_end.missing", lambda name: None)
    monkeypatch.setattr("ostinato.bench.end_to_end.open_peer", lambda name, settings: FakePeer())
    found = run(model, "decode", modes=("none",), batches=(2,), repeats=1, prompt_tokens=4, peers=("vllm",))
    assert found.rows[-1]["mode"] == "vllm"
    assert found.rows[-1]["tpot_ms"] == pytest.approx(2.0)
    assert calls == [(2, 4, 136), (2, 4, 8), (2, 4, 8), (2, 4, 136), (0, 0, 0)]


def test_the_profiler_comes_last_and_fills_what_is_missing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled: list[int] = []

    def busy(run: Callable[[], Any], device: object) -> tuple[float, int]:
        run()
        profiled.append(len(found_rows))
        return (10.0, 100) if len(profiled) % 2 else (10.0 + 16 * 0.25, 100 + 16 * 7)

    found_rows: list[Any] = []  # as they were when they were added
    add = Evidence.add
    monkeypatch.setattr(Evidence, "add", lambda self, row: (found_rows.append(dict(row)), add(self, row))[1])
    monkeypatch.setattr("ostinato.bench.profiling.device_busy", busy)
    monkeypatch.setattr(Run, "is_cuda", True)
    found = run(model, "decode", modes=("full_and_piecewise", "none"), batches=(1,), repeats=1, prompt_tokens=4)
    assert found.failed == {}
    assert profiled == [2, 2, 2, 2]  # after both rows
    for before, after in zip(found_rows, found.rows, strict=True):
        timed = [name for name in before if "tpot" in name or "host" in name or "floor" in name]
        assert len(timed) > 5 and all(before[name] == after[name] for name in timed)
    graph, eager = found.rows
    assert graph["nodes"] == found_rows[0]["kernels"] > 50, "what the profiler counts does not replace it"
    assert (graph["busy_ms"], graph["kernels"], graph["device_clock"]) == (0.25, 7.0, "replay")
    assert (eager["device_ms"], eager["device_clock"]) == (0.25, "profiler")
    assert eager["idle_percent"] == pytest.approx(100 * (1 - 0.25 / eager["tpot_ms"]), abs=0.1)


def test_the_profiler_fills_first_tokens_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.bench.profiling.device_busy", lambda run, device: (run(), (0.25, 7))[1])
    monkeypatch.setattr(Run, "is_cuda", True)
    found = run(model, "prefill", modes=("piecewise",), tokens=(5,), repeats=1, engine={"max_num_batched_tokens": 512})
    assert found.failed == {}
    (row,) = found.rows
    assert (row["busy_ms"], row["device_ms"], row["kernels"]) == (0.25, 0.25, 7)
    assert any("gaps between its kernels count as busy" in note for note in found.notes)


@pytest.mark.parametrize(
    ("scenario", "settings", "engine", "says"),
    [
        ("decode", {"prompt_tokens": 500}, {}, "the model's context is 512"),
        ("decode", {"batches": (9,)}, {"max_num_reqs": 8}, "max_num_reqs"),
        ("decode", {}, {"max_model_len": 200}, "max_model_len is 200"),
        ("prefill", {"tokens": (512,)}, {}, "513 tokens"),
        ("surface", {"tokens": (64,)}, {"max_num_batched_tokens": 32}, "max_num_batched_tokens"),
        ("dispatch", {"tokens": (1,)}, {}, "tokens is 1: there is no size to choose"),
        ("dispatch", {"tokens": (100_000,)}, {}, "a prompt of 100000 needs 100000 tokens"),
        ("executables", {"prompt_tokens": 500}, {"max_model_len": 128}, "needs 501 tokens, and max_model_len is 128"),
        ("startup", {"prompt_tokens": 500}, {"max_model_len": 128}, "needs 501 tokens, and max_model_len is 128"),
        ("serve", {"prompt_tokens": 511, "output_tokens": 9}, {}, "520 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_before_an_engine_is_made(
    model: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, settings: Any, engine: Any, says: str
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr("ostinato.LLM", never, raising=False)
    with pytest.raises(ConfigError, match=says):
        run(model, scenario, engine=engine, **settings)


def test_an_unwritable_output_is_refused_before_an_engine_is_made(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        run(model, "decode", json_out=str(tmp_path / "absent" / "x.json"))
    config = BenchConfig(engine=EngineConfig(model=str(model), load_format="dummy", device="cpu"))
    with pytest.raises(ConfigError, match="evidence and plot are to be the same file"):
        run_bench("checks", config, json_out=str(tmp_path / "x"), plot_out=f"{tmp_path}/../{tmp_path.name}/x")


def test_every_peer_has_a_file() -> None:
    folder = Path(registry.__file__).parent
    assert all((folder / f"{entry.file}.py").is_file() for entry in registry.PEERS.values())
