"""``ostinato plan``: which sizes to capture for a traffic, what that wastes, and what other engines' ladders would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ostinato._whole_file import replace_file
from ostinato.cli.cost_input import read_cost_curves
from ostinato.cli.options import Json
from ostinato.cli.output import check_outputs, print_json
from ostinato.cli.plan_tables import show_plan
from ostinato.cli.price_input import kv_bytes_of, read_graph_price
from ostinato.cli.traffic_input import read_histogram
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.runtime import GraphPrice, TrafficHistogram

__all__ = ["plan"]

# Of the options that say how a trace becomes steps; a histogram has steps already.
_CHUNK_TOKENS: Final = 2048
_MAX_NUM_REQS: Final = 256
_LOAD_FACTOR: Final = 1.0


def plan(
    trace: Annotated[
        Path | None, typer.Option(help="CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.")
    ] = None,
    histogram: Annotated[
        str | None,
        typer.Option(
            help='Steps by size: {"decode": {"29": 1200}, "mixed": {"173": 40}}, or what an engine tells, as '
            "JSON of generate, of stats or of LLM.stats(), a manifest, or a file of JsonLinesSink."
        ),
    ] = None,
    max_graphs: Annotated[int, typer.Option(help="Graphs of each kind of step.")] = 16,
    memory_budget_mib: Annotated[float | None, typer.Option(help="For all graphs together.")] = None,
    capture_seconds: Annotated[float | None, typer.Option(help="To capture all graphs.")] = None,
    graph_mib: Annotated[
        float | None, typer.Option(help="Memory of a graph; by default 2, as of a 1B model on an H200.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="What graphs cost: a manifest, or the JSON of memory or generate; instead of --graph-mib."),
    ] = None,
    kv_bytes_per_token: Annotated[int | None, typer.Option(help="Of a model: prices memory in KV tokens.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Whose KV tokens are lost, and whose --cost is: a hub name, folder or .gguf file."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of its KV cache; by default the checkpoint's.")] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens in one step of the trace's service.")] = _CHUNK_TOKENS,
    max_num_reqs: Annotated[int, typer.Option(help="Requests that run at once in it.")] = _MAX_NUM_REQS,
    load_factor: Annotated[float, typer.Option(help="3 plays the trace three times as fast.")] = _LOAD_FACTOR,
    cost: Annotated[
        Path | None,
        typer.Option(
            help="Measured times: a file of `explain --measure --costs`, or JSON "
            '{"hardware": ..., "decode": {"1": ms}, "mixed": {"16": ms}}.'
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Whose costs to take, where --cost has those of several: breakable, fx, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the sizes as settings for an engine (JSON).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the traffic and the buckets as a picture (PNG).")] = None,
    as_json: Json = False,
) -> None:
    """Choose bucket sizes for the traffic of a trace or a histogram."""
    if (trace is None) == (histogram is None):
        raise ConfigError("give either --trace or --histogram", fix="name one CSV trace, or one file of steps by size")
    if not 0 < load_factor < float("inf"):
        raise ConfigError(f"--load-factor is {load_factor:g}", fix="use a number above 0; 1 is the trace as it was")
    for name, value in (("chunk_tokens", chunk_tokens), ("max_num_reqs", max_num_reqs)):
        if value < 1:
            raise ConfigError(f"{name} is {value}", fix="use 1 or more")
    if partition is not None and cost is None:
        raise ConfigError("--partition goes with --cost", fix="name a file of measured costs too")
    if histogram is not None:
        for name, given, default in (
            ("chunk_tokens", chunk_tokens, _CHUNK_TOKENS),
            ("max_num_reqs", max_num_reqs, _MAX_NUM_REQS),
            ("load_factor", load_factor, _LOAD_FACTOR),
        ):
            if given != default:
                raise ConfigError(f"{name} goes with --trace", fix="leave it out: a histogram has steps already")
    check_outputs(out=out, plot=plot)
    if plot is not None:
        _check_matplotlib()
    from ostinato.runtime import plan_traffic

    price = _price(prices, graph_mib=graph_mib, kv_bytes_per_token=kv_bytes_per_token, model=model, dtype=dtype)
    costs = None if cost is None else read_cost_curves(cost, partition=partition, model=model)
    if histogram is not None:
        traffic = read_histogram(histogram)
    else:
        assert trace is not None
        traffic = _of_trace(trace, chunk_tokens=chunk_tokens, max_num_reqs=max_num_reqs, load_factor=load_factor)
    document = plan_traffic(
        traffic,
        max_graphs=max_graphs,
        memory_budget_mib=memory_budget_mib,
        capture_seconds=capture_seconds,
        price=price,
        costs=costs,
    )
    if out is not None:
        _write(out, json.dumps(_settings(document), indent=2) + "\n")
    if plot is not None:
        _draw(traffic, document, plot)
    if as_json:
        print_json(document)
    else:
        show_plan(document)


def _of_trace(path: Path, *, chunk_tokens: int, max_num_reqs: int, load_factor: float) -> TrafficHistogram:
    from ostinato.bench.load import read_trace
    from ostinato.bench.traffic import StepModel, traffic_of

    model = StepModel(chunk_tokens=chunk_tokens, max_num_reqs=max_num_reqs)
    return traffic_of(read_trace(path, speed=load_factor), model)


def _price(
    prices: Path | None,
    *,
    graph_mib: float | None,
    kv_bytes_per_token: int | None,
    model: str | None,
    dtype: str | None,
) -> GraphPrice:
    from ostinato.runtime import GraphPrice

    if prices is not None and graph_mib is not None:
        raise ConfigError("--prices and --graph-mib both price a graph", fix="leave out one of the two")
    if model is not None and kv_bytes_per_token is not None:
        raise ConfigError("--model and --kv-bytes-per-token both price a token", fix="leave out one of the two")
    if dtype is not None and model is None:
        raise ConfigError("--dtype goes with --model", fix="name the model, or leave it out")
    mib, seconds = (graph_mib, None) if prices is None else read_graph_price(prices)
    default = GraphPrice()
    if prices is not None and seconds is None:
        typer.echo(f"{prices} has no capture times: {default.capture_seconds:g} s a graph are assumed", err=True)
    return GraphPrice(
        mib=default.mib if mib is None else mib,
        capture_seconds=default.capture_seconds if seconds is None else seconds,
        kv_bytes_per_token=(kv_bytes_per_token or 0) if model is None else kv_bytes_of(model, dtype=dtype or "auto"),
    )


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", fix="name a file that can be written") from error


def _settings(document: dict[str, Any]) -> dict[str, list[int]]:
    """Fields of `EngineConfig`."""
    names = {"decode": "decode_sizes", "mixed": "token_sizes"}
    return {name: document[kind]["sizes"] for kind, name in names.items() if document[kind] is not None}


def _check_matplotlib() -> None:
    """Before the work, and before any file is written."""
    from ostinato.bench.plots import has_matplotlib

    if not has_matplotlib():
        raise ConfigError(
            "--plot needs the package 'matplotlib', which is not installed",
            fix="pip install 'ostinato[bench]', or leave out --plot",
        )


def _draw(traffic: TrafficHistogram, document: dict[str, Any], path: Path) -> None:
    from ostinato.bench.plots import draw_traffic

    try:
        draw_traffic({kind: getattr(traffic, kind) for kind in ("decode", "mixed")}, document, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", fix="name a file that can be written") from error
