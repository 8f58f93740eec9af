"""File names and texts without folders."""

from __future__ import annotations

import pytest

from ostinato.bench.naming import file_name, short_hardware, without_folders


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Intel(R) Xeon(R) Processor", "xeon-processor"),
        ("x86_64", "x86-64"),
        ("", "unknown"),
    ],
)
def test_short_hardware(name: str, short: str) -> None:
    assert short_hardware(name) == short


@pytest.mark.parametrize("model", ["benchmarks/models/llama-3.2-1b", "/somewhere/llama-3.2-1b/", "llama-3.2-1b"])
def test_file_names(model: str) -> None:
    assert file_name("decode", model, "NVIDIA H200", "2026-11-29") == "decode_llama-3.2-1b_h200_20261129.json"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/someone/model", "model"),
        ("--json=/var/tmp/a/out.json", "--json=/var/tmp/a/out.json".replace("/var/tmp/a/", "")),
        ("cannot read /a/b/c.csv: gone", "cannot read c.csv: gone"),
        ("benchmarks/models/llama", "benchmarks/models/llama"),
        ("12.5 tokens/s and/or more", "12.5 tokens/s and/or more"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/a/b/", "..."),
    ],
)
def test_absolute_folders_are_cut(text: str, cleaned: str) -> None:
    assert without_folders(text) == cleaned


def test_nested_values_are_walked() -> None:
    assert without_folders({"a": ["/x/y/z", 1], "b": {"c": ("/x/y",)}, "d": None}) == {
        "a": ["z", 1],
        "b": {"c": ["y"]},
        "d": None,
    }
