"""``ostinato explain``: what a mode becomes for a model on this machine, and the reason for each change."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import Attention, Compile, Device, Json, LoadFormat, Mode, Model, Partition
from ostinato.cli.output import print_json
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.errors import ConfigError

__all__ = ["explain"]


def explain(
    model: Model = DEFAULT_MODEL,
    mode: Mode = "auto",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    device: Device = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "auto",
    draft_length: Annotated[int, typer.Option(help="Tokens that a draft adds to each decode.")] = 0,
    as_json: Json = False,
) -> None:
    """Show which graphs a mode gives for a model on this machine, and why it is not what was asked."""
    if draft_length < 0:
        raise ConfigError(f"draft_length is {draft_length}", fix="use 0 (no draft) or more")
    config = EngineConfig(
        model=model,
        mode=mode,
        partition=partition,
        compile=compiler,
        device=device,
        attention=attention,
        load_format=load_format,
    )
    from ostinato.cli.progress import progress_on_stderr
    from ostinato.engine.execution.explain import explain_modes

    found = explain_modes(config, draft_length=draft_length, progress=progress_on_stderr())
    if as_json:
        print_json(found)
        return
    from rich.console import Console
    from rich.table import Column, Table

    attention_facts = found["attention"]
    console = Console()
    support = f"attention {attention_facts['name']} ({attention_facts['support']})"
    console.print(f"{model} on {found['device']}, {support}", markup=False, highlight=False, soft_wrap=True)
    resolved = found["resolved"]
    console.print(
        f"mode {mode} is [bold]{resolved['mode']}[/], partition {resolved['partition']}, compile {resolved['compile']}"
    )
    for reason in found["reasons"]:
        console.print(f"  because {reason}", highlight=False)
    names = [Column(name, no_wrap=True) for name in ("mode", "becomes")]
    table = Table(*names, "decode step", "step with a prompt", "why", title="All modes", title_justify="left")
    everywhere = set.intersection(*(set(row["reasons"]) for row in found["modes"]))  # told above
    for row in found["modes"]:
        why = "; ".join(reason for reason in row["reasons"] if reason not in everywhere)
        table.add_row(row["asked"], row["mode"], row["decode"], row["mixed"], why or "as asked")
    console.print(table)
