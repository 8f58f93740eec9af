"""``ostinato inspect``: the segments, kernels, breaks and bridges of a model's graphs, as text, JSON or DOT."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ostinato.cli.options import Attention, Compile, Device, Dtype, Json, LoadFormat, Mode, Model, Partition
from ostinato.cli.output import print_json
from ostinato.engine.before_torch import head_start
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.errors import ConfigError

__all__ = ["inspect"]

# What an engine on a GPU has by default: larger steps and batches are captured by nobody who has not asked for them.
_MOST_TOKENS: Final = 8192
_MOST_REQS: Final = 256


def inspect(
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(help=f"Size of the bucket, to {_MOST_TOKENS}.")] = 8,
    mode: Mode = "auto",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    device: Device = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "auto",
    as_dot: Annotated[bool, typer.Option("--dot", help="Print Graphviz digraphs.")] = False,
    as_json: Json = False,
) -> None:
    """Capture one bucket of a model and show what its graphs consist of."""
    if as_dot and as_json:
        raise ConfigError("--dot and --json exclude each other", fix="choose one")
    if not 1 <= tokens <= _MOST_TOKENS:
        raise ConfigError(f"--tokens is {tokens}", fix=f"use 1 to {_MOST_TOKENS}: larger buckets show no other ops")
    num_reqs = min(tokens, _MOST_REQS)  # attention holds what each of them may read
    config = EngineConfig(
        model=model,
        mode=mode,
        partition=partition,
        compile=compiler,
        device=device,
        dtype=dtype,
        attention=attention,
        load_format=load_format,
        max_num_reqs=num_reqs,
        max_num_batched_tokens=tokens,
        decode_sizes=(num_reqs,),
        token_sizes=(tokens,),
    )
    head_start(config.device)  # before torch is imported
    from ostinato import LLM
    from ostinato.cli.progress import progress_on_stderr

    with LLM(config=config, progress=progress_on_stderr()) as llm:
        plans = llm.inspect()
    if as_json:
        print_json({"plans": [plan.to_dict() for plan in plans]})
        return
    if not plans:
        typer.echo(f"mode {mode} has no graphs here: see `ostinato explain`")
    for plan in plans:
        typer.echo(plan.to_dot() if as_dot else plan.to_text() + "\n")
