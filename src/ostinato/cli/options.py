"""Options that more than one command has: one spelling, one help text, one default.

Values stay plain strings and numbers here. What they may be is decided by `EngineConfig` and
`SamplingParams`, so that a wrong name gives the same typed error from the command line as from Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.errors import ConfigError

__all__ = [
    "ENGINE_PANEL",
    "Attention",
    "Capture",
    "Compile",
    "ConfigFile",
    "Costs",
    "DecodeSizes",
    "Device",
    "Dispatch",
    "Dtype",
    "Executables",
    "Json",
    "KvTokens",
    "LoadFormat",
    "MaxModelLen",
    "MaxNumReqs",
    "Mode",
    "Model",
    "OnMoved",
    "Partition",
    "TokenSizes",
    "sizes_given",
]

ENGINE_PANEL = "Engine"

Model = Annotated[
    str, typer.Option("--model", "-m", help="Hub name, folder or .gguf file.", rich_help_panel=ENGINE_PANEL)
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=ENGINE_PANEL)]
Dtype = Annotated[
    str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel=ENGINE_PANEL)
]
LoadFormat = Annotated[
    str, typer.Option("--load-format", help="auto, or dummy (made-up weights).", rich_help_panel=ENGINE_PANEL)
]
Attention = Annotated[
    str, typer.Option("--attention", help="auto, torch, triton or flashinfer.", rich_help_panel=ENGINE_PANEL)
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        help="Which graphs: auto, none, piecewise, full, full_decode_only or full_and_piecewise.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        help="How piecewise graphs are made: breakable, fx, inductor; or auto, by measured costs.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Compile = Annotated[
    str,
    typer.Option("--compile", help="What compiles inside graphs: none or inductor.", rich_help_panel=ENGINE_PANEL),
]
Capture = Annotated[
    str,
    typer.Option("--capture", help="When graphs are captured: eager or background.", rich_help_panel=ENGINE_PANEL),
]
OnMoved = Annotated[
    str,
    typer.Option(
        "--on-moved", help="When a weight that graphs read has moved: raise or recapture.", rich_help_panel=ENGINE_PANEL
    ),
]
Dispatch = Annotated[
    str,
    typer.Option("--dispatch", help="Ways to run a step: auto, order or measured.", rich_help_panel=ENGINE_PANEL),
]
Executables = Annotated[
    str,
    typer.Option("--executables", help="own: one a graph; shared: one for like graphs.", rich_help_panel=ENGINE_PANEL),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="JSON file of more engine settings, as `ostinato plan --out` writes it.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
DecodeSizes = Annotated[
    str | None,
    typer.Option(
        "--decode-sizes",
        help="Requests to capture decode for: 1,2,4, or whose ladder: vllm, sglang or tensorrt-llm.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
TokenSizes = Annotated[
    str | None,
    typer.Option(
        "--token-sizes",
        help="Tokens to capture other steps for: 16,64,256, or whose ladder: vllm or sglang.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Costs = Annotated[
    str | None,
    typer.Option("--costs", help="JSON file of measured costs; written if absent.", rich_help_panel=ENGINE_PANEL),
]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="Tokens a request may hold.", rich_help_panel=ENGINE_PANEL)
]
MaxNumReqs = Annotated[
    int | None, typer.Option("--max-num-reqs", help="Requests that run at once.", rich_help_panel=ENGINE_PANEL)
]
KvTokens = Annotated[
    int | None, typer.Option("--kv-tokens", help="Capacity of the KV cache in tokens.", rich_help_panel=ENGINE_PANEL)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")]


def sizes_given(decode_sizes: str | None, token_sizes: str | None) -> dict[str, Any]:
    """Settings from the two options, those that are given: a file may set the others. ``1,2,4`` are sizes; a word alone
    is the name of a ladder, which `EngineConfig` judges.

    Raises:
        ConfigError: several parts, of which one is no integer.
    """
    given = {"decode_sizes": decode_sizes, "token_sizes": token_sizes}
    return {name: _sizes_of(text) for name, text in given.items() if text is not None}


def _sizes_of(text: str) -> tuple[int, ...] | str:
    parts = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdigit() for part in parts):
        return tuple(map(int, parts))
    if len(parts) > 1:
        raise ConfigError(
            f"{text!r} are no sizes", fix="write whole numbers with commas between, as 1,2,4, or the name of one ladder"
        )
    return text
