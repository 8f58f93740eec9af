"""A table of costs: padding is in a graph's, exact where measured, monotone between. Files are whole, of one place."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, ForeignCostsError
from ostinato.runtime import (
    BatchKind,
    CostSample,
    CostTable,
    check_costs_path,
    compare_costs,
    parse_costs,
    read_costs,
    write_costs,
)
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode

MIXED = BatchKind()
PIECEWISE = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=8)
HERE = {"hardware": "NVIDIA H200", "model": "m", "torch": "2.11"}
TIMES = st.dictionaries(st.integers(1, 500), st.floats(0.001, 1e3), min_size=1, max_size=8)


def table(times, *, kind=MIXED, way="eager"):
    return CostTable(tuple(CostSample(kind=kind, way=way, size=n, ms=ms, spread=0.01) for n, ms in times.items()))


def both(eager, graph, kind=MIXED):
    return CostTable(table(eager, kind=kind).samples + table(graph, kind=kind, way="piecewise graph").samples)


def test_a_graph_costs_its_bucket_and_eager_its_live_size():
    costs = both({1: 1.0, 8: 8.0}, {4: 2.0, 8: 3.0})
    live = LiveBatch(num_tokens=3)
    assert costs.cost_ms(live, PIECEWISE) == 3.0, "the padding is in it"
    assert costs.cost_ms(live, None) == 3.0
    assert costs.cost_ms(LiveBatch(num_tokens=8), PIECEWISE) == 3.0
    assert costs.cost_ms(live, dataclasses.replace(PIECEWISE, num_tokens=6)) == 2.5


@given(times=TIMES)
def test_it_is_exact_where_it_was_measured(times):
    costs = table(times)
    assert all(costs.cost_ms(LiveBatch(num_tokens=n), None) == ms for n, ms in times.items())


@given(times=TIMES)
def test_between_two_measurements_it_never_leaves_them(times):
    costs, sizes = table(times), sorted(times)
    for low, high in itertools.pairwise(sizes):
        between = [costs.cost_ms(LiveBatch(num_tokens=n), None) for n in range(low, high + 1)]
        rising = times[high] >= times[low]
        slack = 1e-9 * max(between)
        assert all((b - a if rising else a - b) >= -slack for a, b in itertools.pairwise(between))


def test_beyond_the_last_it_rises_as_before_and_never_falls():
    assert table({10: 1.0, 20: 3.0}).cost_ms(LiveBatch(num_tokens=30), None) == 5.0
    assert table({10: 3.0, 20: 1.0}).cost_ms(LiveBatch(num_tokens=90), None) == 1.0


def test_kinds_of_batches_are_apart():
    decode = BatchKind(uniform_query_len=1)
    costs = CostTable(table({4: 4.0}).samples + table({4: 1.0}, kind=decode).samples)
    assert costs.cost_ms(LiveBatch(num_tokens=4, num_reqs=4), None) == 4.0
    assert costs.cost_ms(LiveBatch(num_tokens=4, num_reqs=4, uniform_query_len=1), None) == 1.0
    assert costs.cost_ms(LiveBatch(num_tokens=4, num_reqs=2, uniform_query_len=2), None) is None
    assert costs.cost_ms(LiveBatch(num_tokens=4), PIECEWISE) is None, "that way was not measured"
    assert costs.cost_ms(LiveBatch(num_tokens=4, num_active_loras=1), None) is None
    assert costs.cost_ms(LiveBatch(num_tokens=4, variant="draft"), None) is None


@pytest.mark.parametrize(("context", "expected"), [(5, 1.0), (16, 1.0), (17, 2.0), (64, 2.0), (99, 2.0), (None, 2.0)])
def test_the_tier_of_a_context(context, expected):
    tiers = [BatchKind(uniform_query_len=1, kv_tier=tier) for tier in (64, 16)]
    costs = CostTable(table({4: 2.0}, kind=tiers[0]).samples + table({4: 1.0}, kind=tiers[1]).samples)
    live = LiveBatch(num_tokens=4, num_reqs=4, uniform_query_len=1, context_tokens=context)
    assert costs.cost_ms(live, None) == expected


def test_a_graph_of_a_longer_tier_costs_what_that_tier_costs():
    kinds = [BatchKind(uniform_query_len=1, kv_tier=tier) for tier in (16, 64)]
    samples = [table({4: float(k.kv_tier)}, kind=k, way="full decode graph").samples for k in kinds]
    costs = CostTable(samples[0] + samples[1])
    key = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4, num_reqs=4, uniform_query_len=1, kv_tier=64)
    live = LiveBatch(num_tokens=4, num_reqs=4, uniform_query_len=1, context_tokens=5)
    assert costs.cost_ms(live, key) == 64.0


@pytest.mark.parametrize(("kind", "name"), [(MIXED, "mixed"), (BatchKind(uniform_query_len=1), "decode")])
def test_names_of_kinds(kind, name):
    assert str(kind) == name
    assert str(BatchKind(uniform_query_len=3, kv_tier=64)) == "decode query_len=3 kv_tier=64"


@pytest.mark.parametrize("bad", [{"way": "magic"}, {"size": 0}, {"ms": 0.0}, {"ms": float("nan")}])
def test_bad_samples(bad):
    good = CostSample(kind=MIXED, way="eager", size=1, ms=1.0)
    with pytest.raises(ConfigError):
        CostTable((dataclasses.replace(good, **bad),))


# --- files ------------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "costs.json"
    tables = {"breakable": both({1: 1.0, 8: 8.0}, {4: 2.0, 8: 3.0}), "fx": table({4: 1.5}, kind=BatchKind(kv_tier=9))}
    write_costs(path, tables, origin=HERE)
    found = read_costs(path, origin=HERE)
    assert {name: set(one.samples) for name, one in found.items()} == {n: set(t.samples) for n, t in tables.items()}
    document = json.loads(path.read_text())
    assert document["origin"] == HERE and document["date"]
    assert document["tables"]["fx"] == [
        {"query_len": None, "kv_tier": 9, "way": "eager", "ms": {"4": 1.5}, "spread": {"4": 0.01}}
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({**HERE, "hardware": "NVIDIA A100"}, "hardware NVIDIA A100, and here it is NVIDIA H200"),
        ({**HERE, "torch": "2.12"}, "torch 2.12, and here it is 2.11"),
        ({"hardware": "NVIDIA H200", "model": "m"}, "torch unknown, and here it is 2.11"),
        ({**HERE, "triton": "3"}, "triton 3, and here it is unknown"),
    ],
)
def test_a_file_of_another_place_is_refused_and_names_both(tmp_path, there, words):
    path = tmp_path / "costs.json"
    write_costs(path, {"breakable": table({1: 1.0})}, origin=there)
    before = path.read_bytes()
    with pytest.raises(ForeignCostsError, match=words):
        read_costs(path, origin=HERE)
    assert path.read_bytes() == before


@pytest.mark.parametrize("origin", [HERE, {**HERE, "format": "fp8"}], ids=["", "with a fact of that name"])
@pytest.mark.parametrize(
    ("format", "there"),
    [(None, "1"), (1, "1"), (3, "3"), ("2", "'2'"), ("2a", "'2a'"), (True, "True"), (2.0, "2.0"), ([2], r"\[2\]")],
)
def test_a_file_whose_times_mean_something_else_is_refused(tmp_path, format, there, origin):
    """One that says no format was written when every step was timed from an idle device to an idle one."""
    path = tmp_path / "costs.json"
    write_costs(path, {"breakable": table({1: 1.0})}, origin=origin)
    assert read_costs(path, origin=origin)
    document = json.loads(path.read_text())
    document.pop("format")
    path.write_text(json.dumps(document | ({} if format is None else {"format": format})))
    with pytest.raises(ForeignCostsError, match=f"format {there}, and here it is 2"):
        read_costs(path, origin=origin)
    with pytest.raises(ForeignCostsError, match=f"format {there}, and here it is 2"):
        parse_costs(json.loads(path.read_text()), name=path)


ENTRY = {"query_len": None, "kv_tier": None, "way": "eager", "ms": {"1": 1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"origin": {}}',
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": {}}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [3]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "ms": {"one": 1.0}}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "ms": {"1": "fast"}}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "ms": {"1": -1}}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "way": "magic"}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "kv_tier": "long"}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "ms": [1]}]}}),
        json.dumps({"format": 2, "origin": HERE, "tables": {"fx": [{**ENTRY, "ms": {"1": 10**400}}]}}),
    ],
)
def test_what_is_no_such_file(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"costs\.json"):
        read_costs(path, origin=HERE)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_costs(tmp_path / "none.json", origin=HERE)
    for path in (tmp_path, tmp_path / "no folder" / "costs.json"):
        with pytest.raises(ConfigError, match="cannot be written"):
            write_costs(path, {}, origin=HERE)
        with pytest.raises(ConfigError, match="cannot be written"):
            check_costs_path(path)
    check_costs_path(tmp_path / "costs.json")
    assert not list(tmp_path.iterdir()), "a failed write leaves nothing"


def test_tables_side_by_side_name_the_best_way_at_each_size():
    rows = compare_costs({"breakable": both({4: 3.0, 8: 5.0}, {4: 2.0, 8: 6.0}), "fx": both({4: 2.9}, {4: 1.5})})
    assert rows == [
        {
            "batches": "mixed",
            "tokens": 4,
            "costs": {"eager": 2.9, "piecewise (breakable)": 2.0, "piecewise (fx)": 1.5},
            "best": "piecewise (fx)",
        },
        {"batches": "mixed", "tokens": 8, "costs": {"eager": 5.0, "piecewise (breakable)": 6.0}, "best": "eager"},
    ]
