"""``ostinato bench``: measure one scenario, print a Markdown table, and leave an evidence file and a plot.

Which options a scenario reads is decided by `bench.scenario`, what they may be by `BenchConfig`, so that a wrong one
gives the same typed error from the command line as from Python. Rows go to standard error as they come.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.bench.config import BenchConfig, parse_numbers
from ostinato.bench.scenario import SCENARIOS, find_scenario, run_bench
from ostinato.cli.config_file import with_config_file
from ostinato.cli.options import (
    ENGINE_PANEL,
    Attention,
    Capture,
    Compile,
    ConfigFile,
    Device,
    Dispatch,
    Dtype,
    KvTokens,
    LoadFormat,
    MaxModelLen,
    MaxNumReqs,
    Model,
    OnMoved,
    Partition,
)
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.errors import ConfigError

__all__ = ["bench"]

LOAD_PANEL = "Load (lists are 1,8,29)"
SERVE_PANEL = "Load of serve"
EXIT_ROWS_FAILED = 1

_SUMMARIES = "; ".join(f"{name}: {scenario.summary}" for name, scenario in SCENARIOS.items())


def bench(
    scenario: Annotated[str, typer.Argument(help=_SUMMARIES + ".")],
    json_out: Annotated[
        str | None, typer.Option("--json", help="Evidence file, or a folder (ending in /) for one with the usual name.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="PNG file, or a folder for one with the usual name.")] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", help="Measure another system too, if it is there; may be repeated."),
    ] = None,
    is_profiled: Annotated[
        bool | None, typer.Option("--profile/--no-profile", help="Of decode and prefill on CUDA: count kernels, last.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Measurements of each row.")] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    modes: Annotated[
        str | None, typer.Option("--modes", "--mode", help="Modes to compare, or one.", rich_help_panel=LOAD_PANEL)
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Of surface: ways to make graphs.", rich_help_panel=LOAD_PANEL)
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Requests that decode.", rich_help_panel=LOAD_PANEL)] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Prompt lengths, or tokens of a step.", rich_help_panel=LOAD_PANEL)
    ] = None,
    requests: Annotated[
        str | None, typer.Option(help="Of surface: requests that share a step.", rich_help_panel=LOAD_PANEL)
    ] = None,
    segments: Annotated[
        str | None, typer.Option(help="Of segments: lengths of the chains.", rich_help_panel=LOAD_PANEL)
    ] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens in a prompt.", rich_help_panel=LOAD_PANEL)] = None,
    is_cold: Annotated[
        bool | None, typer.Option("--cold", help="Of startup: empty compiler caches.", rich_help_panel=LOAD_PANEL)
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Requests a second, such as 8,32.", rich_help_panel=SERVE_PANEL)
    ] = None,
    num_requests: Annotated[int | None, typer.Option(help="How many are sent.", rich_help_panel=SERVE_PANEL)] = None,
    output_tokens: Annotated[
        int | None, typer.Option(help="Tokens that each asks for.", rich_help_panel=SERVE_PANEL)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV: TIMESTAMP, ContextTokens, GeneratedTokens.", rich_help_panel=SERVE_PANEL)
    ] = None,
    trace_speed: Annotated[
        float | None, typer.Option(help="2 replays the trace in half its time.", rich_help_panel=SERVE_PANEL)
    ] = None,
    ttft_goal_ms: Annotated[
        float | None, typer.Option(help="Goal for the first token.", rich_help_panel=SERVE_PANEL)
    ] = None,
    tpot_goal_ms: Annotated[
        float | None, typer.Option(help="Goal for each later token.", rich_help_panel=SERVE_PANEL)
    ] = None,
    model: Model = DEFAULT_MODEL,
    partition: Partition = "breakable",
    compiler: Compile = "none",
    dispatch: Dispatch = "auto",
    capture: Capture = "eager",
    on_moved: OnMoved = "raise",
    config_file: ConfigFile = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    load_format: LoadFormat = "auto",
    attention: Attention = "auto",
    max_model_len: MaxModelLen = None,
    max_num_reqs: MaxNumReqs = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one step.", rich_help_panel=ENGINE_PANEL)
    ] = None,
    kv_tokens: KvTokens = None,
) -> None:
    """Measure a scenario: table, evidence file, plot."""
    find_scenario(scenario)
    if capture == "background" and scenario not in ("startup", "serve"):
        raise ConfigError(
            f"{scenario} measures captured graphs",
            fix="--capture background goes with startup and serve",
        )
    options: dict[str, Any] = {
        "model": model,
        "partition": partition,
        "compile": compiler,
        "dispatch": dispatch,
        "capture": capture,
        "on_moved": on_moved,
        "device": device,
        "dtype": dtype,
        "load_format": load_format,
        "attention": attention,
        "max_model_len": max_model_len,
        "max_num_reqs": max_num_reqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_tokens": kv_tokens,
    }
    config = BenchConfig(
        engine=with_config_file(EngineConfig(**options), config_file, options={*options, "mode"}),
        modes=_names(modes),
        variants=_names(variants),
        batches=_numbers("batches", batches),
        tokens=_numbers("tokens", tokens),
        requests=_numbers("requests", requests),
        segments=_numbers("segments", segments),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        repeats=repeats,
        rates=_rates(rates),
        num_requests=num_requests,
        trace=trace,
        trace_speed=trace_speed,
        ttft_goal_ms=ttft_goal_ms,
        tpot_goal_ms=tpot_goal_ms,
        is_cold=is_cold,
        is_profiled=is_profiled,
        peers=tuple(peers) if peers else None,
        seed=seed,
    )
    _run(scenario, config, json_out=json_out, plot=plot)


def _run(scenario: str, config: BenchConfig, *, json_out: str | None, plot: str | None) -> None:
    from ostinato.bench.plots import draw, has_matplotlib
    from ostinato.bench.report import report
    from ostinato.cli.progress import progress_on_stderr

    if plot is not None and not has_matplotlib():
        typer.echo("no plot: matplotlib is not installed (pip install 'ostinato[bench]')", err=True)
        plot = None
    evidence = run_bench(
        scenario,
        config,
        json_out=json_out,
        plot_out=plot,
        progress=progress_on_stderr(),
        say=lambda text: typer.echo(text, err=True),
    )
    document = evidence.to_dict()
    typer.echo(report(document))
    if evidence.plot_path is not None and evidence.rows:
        draw(document, evidence.plot_path)
        typer.echo(f"\nplot: {evidence.plot_path}", err=True)
    if evidence.path is not None:
        typer.echo(f"evidence: {evidence.path}", err=True)
    if evidence.failed:
        raise typer.Exit(EXIT_ROWS_FAILED)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else parse_numbers(name, text)


def _rates(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        fix = "write numbers with commas between: 8,32.5"
        raise ConfigError(f"rates is {text!r}", fix=fix, field="rates") from error
