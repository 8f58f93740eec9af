"""``ostinato memory``: where an engine's memory will go, by owner, and how many KV tokens fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ostinato.cli.config_file import engine_config
from ostinato.cli.options import (
    Attention,
    Compile,
    ConfigFile,
    DecodeSizes,
    Device,
    Dtype,
    Executables,
    Json,
    KvTokens,
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
from ostinato.engine.before_torch import head_start
from ostinato.engine.config import DEFAULT_MODEL
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ostinato.engine.execution import MemoryForecast
    from ostinato.runtime import DeviceView

__all__ = ["memory"]

_MOST_MIB: Final = 1e12


def memory(
    model: Model = DEFAULT_MODEL,
    mode: Mode = "auto",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    executables: Executables = "own",
    config_file: ConfigFile = None,
    decode_sizes: DecodeSizes = None,
    token_sizes: TokenSizes = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "auto",
    max_model_len: MaxModelLen = None,
    max_num_reqs: MaxNumReqs = None,
    kv_tokens: KvTokens = None,
    budget_mib: Annotated[float | None, typer.Option(help="For everything; by default what the device has.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Capture all graphs and show the difference.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the formulas, with the model's numbers.")] = False,
    as_json: Json = False,
) -> None:
    """Predict an engine's memory by owner from shapes and a few sample captures."""
    if budget_mib is not None and not 0 < budget_mib <= _MOST_MIB:
        raise ConfigError(f"--budget-mib is {budget_mib:g}", fix=f"use a number of MiB above 0, to {_MOST_MIB:g}")
    config = engine_config(
        config_file,
        model=model,
        mode=mode,
        partition=partition,
        compile=compiler,
        executables=executables,
        device=device,
        dtype=dtype,
        attention=attention,
        load_format=load_format,
        max_model_len=max_model_len,
        max_num_reqs=max_num_reqs,
        kv_tokens=kv_tokens,
        **sizes_given(decode_sizes, token_sizes),
    )
    head_start(config.device)  # before torch is imported
    from ostinato.cli.progress import progress_on_stderr
    from ostinato.engine.execution import forecast_memory, load_model
    from ostinato.engine.weights.progress import reporting

    progress = progress_on_stderr()
    budget = None if budget_mib is None else int(budget_mib * 2**20)
    loaded = load_model(config, progress=progress, budget_bytes=budget)
    with reporting(progress, "sample captures", None, "passes") as bar:
        found = forecast_memory(loaded, budget_bytes=budget, is_measured=measure, on_key=lambda _key: bar.advance(1))
    if as_json:
        from ostinato.bench.environment import made

        print_json(found.to_dict() | {"made": made(loaded.device, found.config)})
    else:
        _show(found, has_formulas=explain)


def _show(found: MemoryForecast, *, has_formulas: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("owner", title="MiB by owner", title_justify="left")
    for column in ("predicted",) if found.measured is None else ("predicted", "measured", "difference"):
        table.add_column(column, justify="right")
    for owner in (*found.predicted, "total"):
        table.add_row(owner, *_cells(found, owner), end_section=owner == list(found.predicted)[-1])
    console.print(table)
    console.print(
        f"{found.num_graphs} graphs, predicted from {found.num_samples} of them. {found.kv_tokens:,} KV tokens in a "
        f"budget of {found.budget_bytes / 2**20:,.0f} MiB.",
        highlight=False,
        soft_wrap=True,
    )
    if found.executables is not None:
        counts = found.executables
        shared = f"{counts['shared_groups']} of them shared" if counts["shared_groups"] else "none of them shared"
        console.print(
            f"Measured: {counts['count']} executables of {counts['nodes']:,} nodes, {shared}.", highlight=False
        )
    if has_formulas:
        formulas = Table("quantity", "formula", title="Formulas", title_justify="left")
        formulas.add_column("bytes", justify="right")
        for term in found.footprint.terms():
            formulas.add_row(term.name, term.formula, f"{term.num_bytes:,}")
        console.print(formulas)
    if found.device is not None:
        _show_device(console, found.device)


def _cells(found: MemoryForecast, owner: str) -> list[str]:
    def of(ledger: dict[str, int]) -> int:
        return sum(ledger.values()) if owner == "total" else ledger.get(owner, 0)

    predicted = of(dict(found.predicted))
    if found.measured is None:
        return [f"{predicted / 2**20:,.2f}"]
    measured = of(dict(found.measured))
    return [f"{number / 2**20:,.2f}" for number in (predicted, measured, measured - predicted)]


def _show_device(console: Console, view: DeviceView) -> None:
    from rich.table import Table

    table = Table("the device", title="MiB of the device, as it stands", title_justify="left")
    table.add_column("MiB", justify="right")
    rows = {
        "free": view.free_bytes,
        "live tensors": view.live_bytes,
        "kept by the allocator": view.cached_bytes,
        "graph pools": view.graph_pool_bytes,
        "outside the allocator (KV cache, executables, kernels, context, others)": view.outside_bytes,
        "empty_cache() would give back": view.returned_by_empty_cache_bytes,
        "and with expandable_segments beyond": view.returned_if_expandable_bytes,
    }
    for name, num_bytes in rows.items():
        table.add_row(name, f"{num_bytes / 2**20:,.1f}")
    console.print(table)
