"""The table of measured choices: what is stored comes back, and nothing stale or broken does."""

from __future__ import annotations

import json

import pytest
import torch

from ostinato.engine.layers.linear_table import LinearTable, load_table, save_table, table_key, table_path
from ostinato.engine.layers.linear_tiles import LinearKind, LinearShape, LinearTiles, default_tiles

KEY = {"table": "1", "device": "a GPU", "torch": "2.11", "triton": "3.6", "pdl": "True"}


def shape(**changes):
    values = {"kind": LinearKind.LINEAR_ADD, "num_rows": 4, "out_features": 64, "in_features": 96, "dtype": "bfloat16"}
    return LinearShape(**{**values, **changes})


@pytest.fixture
def table():
    tiles = LinearTiles(block_n=32, block_k=64, num_warps=4, num_stages=3)
    return LinearTable(choices={shape(): tiles, shape(num_rows=8): None})


def test_measured_choices_come_before_defaults(table):
    assert table.choose(shape()).block_n == 32
    assert table.choose(shape(num_rows=8)) is None
    assert table.choose(shape(num_rows=1)) == default_tiles(shape(num_rows=1))


def test_what_is_stored_comes_back(table, tmp_path):
    assert save_table(tmp_path, KEY, table)
    assert load_table(tmp_path, KEY).choices == table.choices
    assert [path.name for path in (tmp_path / "tuning").iterdir()] == [table_path(tmp_path, KEY).name]


@pytest.mark.parametrize("field", list(KEY))
def test_another_key_finds_nothing(table, tmp_path, field):
    save_table(tmp_path, KEY, table)
    assert not load_table(tmp_path, {**KEY, field: "other"}).choices


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": {}, "choices": []}', '{"key": 1'])
def test_a_broken_file_is_no_table(tmp_path, content):
    path = table_path(tmp_path, KEY)
    path.parent.mkdir()
    path.write_text(content)
    assert not load_table(tmp_path, KEY).choices


def test_a_file_under_the_wrong_name_is_stale(table, tmp_path):
    save_table(tmp_path, KEY, table)
    path = table_path(tmp_path, KEY)
    stored = json.loads(path.read_text())
    stored["key"]["torch"] = "2.12"
    path.write_text(json.dumps(stored))
    assert not load_table(tmp_path, KEY).choices


def test_a_folder_that_cannot_be_written_is_no_error(table, tmp_path):
    (tmp_path / "tuning").write_text("in the way")
    assert not save_table(tmp_path, KEY, table)


def test_the_key_names_what_measurements_depend_on():
    keys = [table_key(torch.device("cpu"), use_pdl=use_pdl) for use_pdl in (False, True)]
    assert set(keys[0]) == {"table", "device", "torch", "triton", "pdl"}
    assert keys[0] != keys[1]
