"""Options that more than one command has: one spelling, one help text, one default.

Values stay plain strings and numbers here. What they may be is decided by `EngineConfig` and
`SamplingParams`, so that a wrong name gives the same typed error from the command line as from Python.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["ENGINE_PANEL", "Device", "Dtype", "Json", "Model"]

ENGINE_PANEL = "Engine"

Model = Annotated[
    str, typer.Option("--model", "-m", help="Hub name, folder or .gguf file.", rich_help_panel=ENGINE_PANEL)
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=ENGINE_PANEL)]
Dtype = Annotated[
    str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel=ENGINE_PANEL)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")]
