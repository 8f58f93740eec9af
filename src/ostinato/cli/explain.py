"""``ostinato explain``: what a mode becomes for a model on this machine, and what a step runs as; the reason for each.

Loads no weights, unless costs are to be measured: then one engine is opened for each partition, and closed again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.config_file import engine_config
from ostinato.cli.options import (
    ENGINE_PANEL,
    Attention,
    Compile,
    ConfigFile,
    Costs,
    DecodeSizes,
    Device,
    Dtype,
    Json,
    LoadFormat,
    MaxModelLen,
    MaxNumReqs,
    Mode,
    Model,
    Partition,
    TokenSizes,
    sizes_given,
)
from ostinato.cli.output import print_json
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.engine import StepQuery
    from ostinato.engine.execution import GraphKey
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["explain"]

STEP_PANEL = "A step"


def explain(
    model: Model = DEFAULT_MODEL,
    mode: Mode = "auto",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    config_file: ConfigFile = None,
    decode_sizes: DecodeSizes = None,
    token_sizes: TokenSizes = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "auto",
    max_num_reqs: MaxNumReqs = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one step.", rich_help_panel=ENGINE_PANEL)
    ] = None,
    max_model_len: MaxModelLen = None,
    draft_length: Annotated[int, typer.Option(help="Tokens that a draft adds to each decode.")] = 0,
    active_loras: Annotated[int, typer.Option(help="Adapters that are active in a step.")] = 0,
    decode: Annotated[int | None, typer.Option(help="Requests that decode.", rich_help_panel=STEP_PANEL)] = None,
    prefill: Annotated[int | None, typer.Option(help="Tokens of a prompt.", rich_help_panel=STEP_PANEL)] = None,
    mixed: Annotated[
        str | None, typer.Option(help="Both: 12+200 decodes 12 beside 200 tokens.", rich_help_panel=STEP_PANEL)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of the longest decode; 256 if the model allows it.", rich_help_panel=STEP_PANEL),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the model and time every way to run a step.")
    ] = False,
    partitions: Annotated[str | None, typer.Option(help="Several to compare: breakable,fx,inductor.")] = None,
    costs: Costs = None,
    as_json: Json = False,
) -> None:
    """Show which graphs a mode gives for a model on this machine, what a step runs as, and why not otherwise."""
    assumptions = (("--draft-length", "drafts", draft_length), ("--active-loras", "adapters", active_loras))
    for option, what, value in assumptions:
        if value < 0:
            raise ConfigError(f"{option} is {value}", fix=f"use 0 (no {what}) or more")
        if value and measure:
            raise ConfigError(f"{what} cannot be measured", fix=f"leave out --measure or {option}")
    asked = _asked(decode, prefill, mixed)
    if context is not None and context < 1:
        raise ConfigError(f"--context is {context}", fix="use 1 or more")
    config = engine_config(
        config_file,
        model=model,
        mode=mode,
        partition=partition,
        compile=compiler,
        device=device,
        dtype=dtype,
        attention=attention,
        load_format=load_format,
        max_num_reqs=max_num_reqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        costs=costs,
        **sizes_given(decode_sizes, token_sizes),
    )
    names = [partition] if partitions is None else [name.strip() for name in partitions.split(",")]
    configs = [dataclasses.replace(config, partition=name) for name in names]
    if partitions is not None and not measure and costs is None:
        raise ConfigError("--partitions compares what was measured", fix="add --measure, or --costs with a file")
    if costs is not None and asked is None and not measure and "auto" not in names:
        raise ConfigError(
            "--costs tells of a step",
            fix="add --decode, --prefill or --mixed, --measure to fill it, or --partition auto",
        )
    if measure and "auto" in names:
        fix = "name what to measure: --partitions breakable,fx,inductor"
        raise ConfigError("partition auto goes by what was measured before", fix=fix)
    if context is not None and asked is None:
        raise ConfigError("--context belongs to a step", fix="add --decode, --prefill or --mixed")
    from ostinato.cli.progress import progress_on_stderr
    from ostinato.engine.execution.explain import explain_modes

    progress = progress_on_stderr()
    assumed = {"draft_length": draft_length, "num_active_loras": active_loras}
    found = explain_modes(config, **assumed, progress=progress)
    query = None if asked is None else _query(asked, context)
    found |= _explain_steps(configs, query, assumed, measure=measure, progress=progress)
    if as_json:
        import torch

        from ostinato.bench.environment import made

        print_json(found | {"made": made(torch.device(found["device"]), config)})
    else:
        _print(found)


def _asked(decode: int | None, prefill: int | None, mixed: str | None) -> tuple[int, int] | None:
    """Decodes and prompt tokens that were asked about, or None."""
    given = {"--decode": decode, "--prefill": prefill, "--mixed": mixed}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are two steps", fix="ask about one; --mixed 12+200 is both in one")
    for name, value in (("--decode", decode), ("--prefill", prefill)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}", fix="use 1 or more")
    if mixed is None:
        return (decode or 0, prefill or 0) if named else None
    parts = re.fullmatch(r"([1-9][0-9]{0,8})\+([1-9][0-9]{0,8})", mixed.replace(" ", ""), re.ASCII)
    if parts is None:
        raise ConfigError(f"--mixed is {mixed!r}", fix="write decodes, a plus, and prompt tokens: 12+200")
    return int(parts[1]), int(parts[2])


def _query(asked: tuple[int, int], context: int | None) -> StepQuery:
    from ostinato.engine import StepQuery

    return StepQuery(num_decodes=asked[0], num_prefill_tokens=asked[1], context_tokens=context)


def _explain_steps(
    configs: Sequence[EngineConfig],
    query: StepQuery | None,
    assumed: dict[str, int],
    *,
    measure: bool,
    progress: ProgressReporter,
) -> dict[str, Any]:
    """``{"step": ...}`` if one was asked about, ``{"costs": ...}`` if they were measured."""
    from ostinato.cli.step_tables import decision_to_dict
    from ostinato.engine.execution.explain import explain_step
    from ostinato.runtime import CostTable, compare_costs

    decisions, tables = {}, {}
    estimated: dict[str, list[GraphKey]] = {}
    for config in configs:
        if query is not None:  # before weights are loaded: it refuses what no step can be
            unmeasured = dataclasses.replace(config, costs=None) if measure else config
            name, decision, keys = explain_step(unmeasured, query, **assumed, progress=progress)
            decisions[name], estimated[name] = decision, keys
        if measure:
            from ostinato import LLM

            with LLM(config=dataclasses.replace(config, dispatch="measured"), progress=progress) as llm:
                tables[llm.partition] = llm.costs or CostTable()
                if query is not None:
                    decisions[llm.partition] = llm.explain(query)
    found: dict[str, Any] = {}
    if query is not None:
        live = next(iter(decisions.values())).live
        found["step"] = {
            "decodes": query.num_decodes,
            "prefill_tokens": query.num_prefill_tokens,
            "tokens": live.num_tokens,
            "requests": live.num_reqs,
            "decisions": [decision_to_dict(name, one, estimated.get(name, [])) for name, one in decisions.items()],
        }
    return found | ({"costs": compare_costs(tables)} if measure else {})


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from ostinato.cli.step_tables import costs_table, decision_line, estimate_line, step_table

    attention_facts = found["attention"]
    console = Console()
    support = f"attention {attention_facts['name']} ({attention_facts['support']})"
    console.print(f"{found['model']} on {found['device']}, {support}", markup=False, highlight=False, soft_wrap=True)
    resolved = found["resolved"]
    console.print(
        f"mode {found['asked']['mode']} is [bold]{resolved['mode']}[/], partition {resolved['partition']}, "
        f"compile {resolved['compile']}"
    )
    for reason in found["reasons"]:
        console.print(f"  because {reason}", highlight=False)
    if "step" in found:
        step = found["step"]
        console.print(
            f"\nA step of {step['decodes']} decodes and {step['prefill_tokens']} prompt tokens", highlight=False
        )
        for decision in step["decisions"]:
            console.print(decision_line(decision), markup=False, highlight=False, soft_wrap=True)
            console.print(step_table(decision))
            if decision["estimated"]:
                console.print(estimate_line(decision), markup=False, highlight=False, soft_wrap=True)
    if "costs" in found:
        console.print(costs_table(found["costs"]))
    if "step" in found or "costs" in found:
        return
    names = [Column(name, no_wrap=True) for name in ("mode", "becomes")]
    table = Table(*names, "decode step", "step with a prompt", "why", title="All modes", title_justify="left")
    everywhere = set.intersection(*(set(row["reasons"]) for row in found["modes"]))  # told above
    for row in found["modes"]:
        why = "; ".join(reason for reason in row["reasons"] if reason not in everywhere)
        small = row["full_mixed_max_tokens"]
        mixed = row["mixed"] + (f", FULL up to {small} tokens" if small else "")
        table.add_row(row["asked"], row["mode"], row["decode"], mixed, why or "as asked")
    console.print(table)
