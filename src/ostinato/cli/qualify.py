"""``ostinato qualify``: compare every graph of a model with eager, key by key, on padded and poisoned batches.

Exit code 0 if all keys pass, 1 if one was quarantined or there was none to try, 2 on bad input. Keys go to standard
error as they are done.
Limits are small on purpose where neither they nor sizes are given: on a CPU each case costs what the step costs.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ostinato.cli.config_file import engine_config
from ostinato.cli.options import (
    ENGINE_PANEL,
    Attention,
    Compile,
    ConfigFile,
    DecodeSizes,
    Device,
    Dtype,
    Json,
    LoadFormat,
    Mode,
    Model,
    Partition,
    TokenSizes,
    sizes_given,
)
from ostinato.cli.output import be_lenient, print_json
from ostinato.engine.before_torch import head_start
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.engine.execution import KeyReport, QualificationReport

__all__ = ["qualify"]

EXIT_NOT_PASSED = 1
_NUM_REQS: Final = 4
_NUM_TOKENS: Final = 32


def qualify(
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
    max_num_reqs: Annotated[
        int | None,
        typer.Option(
            help="Largest batch of decodes, in requests; 4, or what sizes need.", rich_help_panel=ENGINE_PANEL
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            help="Largest step with prompts, in tokens; 32, or what sizes need.", rich_help_panel=ENGINE_PANEL
        ),
    ] = None,
    max_model_len: Annotated[int, typer.Option(help="Longest context, in tokens.", rich_help_panel=ENGINE_PANEL)] = 512,
    seed: Annotated[int, typer.Option(help="Of the made-up batches.")] = 0,
    as_json: Json = False,
) -> None:
    """Compare every graph of a model with eager: outputs, all state writes, frozen numbers, time."""
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
        seed=seed,
        **sizes_given(decode_sizes, token_sizes),
    )
    config = _limited(config)
    if config.capture != "eager":
        raise ConfigError("qualify compares captured graphs", fix=f"leave 'capture' out of {config_file}")
    head_start(config.device)  # before torch is imported
    from ostinato import LLM
    from ostinato.cli.progress import progress_on_stderr

    with LLM(config=config, progress=progress_on_stderr()) as llm:
        report = llm.qualify(on_key=_tell)
        resolved, device_name = llm.config, llm.config.device
    if as_json:
        import torch

        from ostinato.bench.environment import made

        print_json({"model": model, **report.to_dict(), "made": made(torch.device(device_name), resolved)})
    else:
        _print(report, mode)
    if not report.passed:
        raise typer.Exit(EXIT_NOT_PASSED)


def _limited(config: EngineConfig) -> EngineConfig:
    """``config`` with small limits where none was given, as large as its sizes need."""
    decode = config.decode_sizes if isinstance(config.decode_sizes, tuple) else ()  # a ladder ends at the limit
    mixed = config.token_sizes if isinstance(config.token_sizes, tuple) else ()
    num_reqs = config.max_num_reqs or max((_NUM_REQS, *decode))
    num_tokens = config.max_num_batched_tokens or max((_NUM_TOKENS, num_reqs, *mixed))
    return dataclasses.replace(config, max_num_reqs=num_reqs, max_num_batched_tokens=num_tokens)


def _tell(key: KeyReport) -> None:
    typer.echo(f"{'pass' if key.passed else 'FAIL'}  {key.key}", err=True)


def _print(report: QualificationReport, mode: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    be_lenient()
    console = Console(file=sys.stdout)
    if not report.keys:
        typer.echo(f"mode {mode} has no graphs here, so none was tried: see `ostinato explain`")
        return
    console.print(_table(report))
    for key in report.keys:
        for finding in key.findings:
            console.print(f"[red]{escape(str(key.key))}[/]: {escape(str(finding))}", highlight=False, soft_wrap=True)
        for warning in key.warnings:
            console.print(f"{escape(str(key.key))}: {escape(warning)}", highlight=False, soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
    count = len(report.failed)
    verdict = f"{count} of {len(report.keys)} keys quarantined" if count else f"all {len(report.keys)} keys pass"
    console.print(f"[{'red' if count else 'green'}]{verdict}[/], {report.seconds:.1f} s", highlight=False)


def _table(report: QualificationReport) -> Any:
    from rich.table import Table

    how = "bit for bit" if report.is_bitwise else "within tolerance of its dtype"
    caption = f"{report.backend}; max diff: to eager at the padded shape, {how}; unpadded: to eager on live rows alone"
    table = Table(title="Graphs against eager", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("key", overflow="fold")
    table.add_column("cases", justify="right")
    table.add_column("max diff", justify="right")
    table.add_column("unpadded", justify="right")
    table.add_column("state", justify="right")
    table.add_column("time", justify="right")
    table.add_column("verdict")
    for key in report.keys:
        kinds = [str(finding.kind.value) for finding in key.findings]
        table.add_row(
            str(key.key),
            str(key.num_cases),
            _gap(key.max_gap),
            _gap(key.max_gap_unpadded),
            "FAIL" if "STATE_WRITES" in kinds else f"{key.num_state_tensors} ok",
            "-" if key.time_ratio is None else f"{key.time_ratio:.2f}x",
            "[green]pass[/]" if key.passed else f"[red]{', '.join(kinds)}[/]",
        )
    return table


def _gap(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
