"""``ostinato stats``: what the steps of an engine did, also while it runs.

Reads what the engine's sinks tell, a file of JSON lines or a Prometheus endpoint, and touches no engine. No torch.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from ostinato.cli.options import Json
from ostinato.cli.output import be_lenient, print_json
from ostinato.cli.size_suggestion import show_suggestion, suggestion_of
from ostinato.cli.tables import dispatch_table
from ostinato.cli.traffic_input import is_address
from ostinato.errors import ConfigError
from ostinato.telemetry import read_json_lines, read_metrics

__all__ = ["stats"]

_TIMEOUT_S = 10
_MOST_BYTES = 1 << 26  # of a page; one of ours has some kilobytes
_MOST_SECONDS = 86_400  # between two looks
_FEW_KEYS = 12
_TABLE_COLUMNS = 112


def stats(
    source: Annotated[str, typer.Argument(help="A file of JsonLinesSink, or http://HOST:PORT/metrics.")],
    watch: Annotated[float | None, typer.Option(help="Look again every so many seconds, until interrupted.")] = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Say which sizes would suit these steps better; also of stats as JSON.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what an engine's steps did: modes, buckets, reasons, padding, times, graphs never used, failures.

    SOURCE is the file that `JsonLinesSink(path)` writes, or the address that `PrometheusSink().serve(port)` answers.
    With `--suggest` it is that file, or what this command or `LLM.stats()` gave as JSON.
    """
    if watch is not None and not 0 < watch <= _MOST_SECONDS:
        raise ConfigError(f"--watch is {watch:g}", fix=f"use a number of seconds above 0, to {_MOST_SECONDS:,}")
    if suggest and watch is not None:
        raise ConfigError("--suggest looks once", fix="leave out --watch")
    be_lenient()
    if suggest:
        found = suggestion_of(source)
        if as_json:
            print_json({"source": source, "suggestion": found.to_dict()})
        else:
            show_suggestion(found)
        return
    while True:
        document = {"source": source, **_read(source)}
        if not as_json:
            _show(document, clears=watch is not None)
        elif watch is None:
            print_json(document)
        else:
            typer.echo(json.dumps(document))  # a line each
        if watch is None:
            return
        time.sleep(watch)


def _read(source: str) -> dict[str, Any]:
    if is_address(source):
        return read_metrics(_fetched(source), name=source)
    try:
        with open(source, encoding="utf-8-sig") as file:
            return read_json_lines(file, name=source).snapshot()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{source} cannot be read: {error}", fix="name a file of events, or an http:// URL"
        ) from error


def _fetched(url: str) -> str:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        end = time.monotonic() + _TIMEOUT_S
        with urlopen(url, timeout=_TIMEOUT_S) as answer:
            text = b""
            while part := answer.read1(_MOST_BYTES):
                text += part
                if len(text) > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES:,} bytes")
                if time.monotonic() > end:
                    raise TimeoutError("timed out")
            return text.decode("utf-8")
    except (OSError, HTTPException, ValueError) as error:  # ValueError: no URL, or no text
        raise ConfigError(
            f"{url} gives no answer: {error}", fix="name the /metrics address of a running engine"
        ) from error


def _show(document: dict[str, Any], *, clears: bool) -> None:
    from rich.console import Console

    console = Console()
    console.width = max(console.width, _TABLE_COLUMNS)  # what is cut off cannot be read at all
    if clears:
        console.clear()  # of a terminal, nothing else
    dispatch = document["dispatch"]
    console.print(dispatch_table(dispatch, has_times=True))
    told = ", ".join(f"{count} {state}" for state, count in dispatch["keys"].items() if count)
    _say(console, f"keys: {told or 'none planned'}")
    never = dispatch["never_hit"]
    if never:
        more = f" and {len(never) - _FEW_KEYS} more" if len(never) > _FEW_KEYS else ""
        _say(console, f"never hit ({len(never)}): {'; '.join(never[:_FEW_KEYS])}{more}")
    failures = [f"{name.replace('_', ' ')} {count}" for name, count in document["failures"].items() if count]
    _say(console, f"failures: {', '.join(failures) or 'none'}")


def _say(console: Any, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
