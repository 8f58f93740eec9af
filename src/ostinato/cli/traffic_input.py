"""Steps by size, from whatever holds them: a histogram, or what an engine has told of itself.

Recognised by their form: a histogram; the JSON of ``ostinato generate`` and ``ostinato stats``, or a line of it for
each look (``--watch``); `LLM.stats()`; a capture manifest; the lines of a `JsonLinesSink`. A metrics endpoint has no
sizes. Called by ``plan`` and ``stats``; loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.errors import ConfigError
from ostinato.telemetry import read_json_lines

if TYPE_CHECKING:
    from ostinato.runtime import TrafficHistogram

__all__ = ["is_address", "read_histogram", "read_planned"]

_FIX = "name a histogram, the JSON of `ostinato generate` or `ostinato stats`, a manifest, or a file of JsonLinesSink"


def is_address(source: str) -> bool:
    """Whether ``source`` is a metrics endpoint, and no file."""
    return source.lower().startswith(("http://", "https://"))


def read_histogram(source: str) -> TrafficHistogram:
    """The steps that ``source`` tells of.

    Raises:
        ConfigError: it cannot be read, is none of the forms, or has no sizes; the message names it and what is missing.
    """
    from ostinato.runtime import TrafficHistogram

    document = _document(source)
    dispatch = _dispatch(document)
    if dispatch is not None:
        found = _sizes(dispatch, source)
    elif isinstance(document, Mapping) and {"origin", "keys", "traffic"} <= document.keys():
        found = document["traffic"]
        if found is None:
            raise ConfigError(f"the manifest {source} has no traffic: no step was served", fix=_FIX)
    else:
        found = document
    try:
        return TrafficHistogram.from_dict(found)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.message}", fix=error.fix, **error.context) from error


def read_planned(source: str) -> tuple[TrafficHistogram, list[str], int | None]:
    """The steps that ``source`` tells of, the keys that are planned there, and the most tokens that another key but of
    uniform decode might have; None where that is not told.

    Raises:
        ConfigError: as `read_histogram`; or it does not say which keys are planned, or no number of tokens.
    """
    from ostinato.runtime import TrafficHistogram

    document = _document(source)
    dispatch = _dispatch(document)
    if dispatch is None:
        raise ConfigError(f"{source} does not say which graphs are planned", fix="name an engine's stats or events")
    counts = _sizes(dispatch, source)
    try:
        if "planned" in document:
            planned = list(document["planned"])
        else:
            planned = sorted({*dispatch["key_hits"], *dispatch["never_hit"]})
            if len(planned) != sum(dispatch["keys"].values()):
                raise ConfigError(
                    f"{source} counts steps of graphs that are no longer planned: sizes were changed while it ran",
                    fix="name the engine's event file (JsonLinesSink), which tells when",
                )
        if not all(isinstance(name, str) for name in planned):
            raise TypeError(f"graphs are named {planned}")
        most = dispatch.get("max_captured_tokens")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise TypeError(f"max_captured_tokens is {most!r}")
        return TrafficHistogram.from_dict(counts), planned, most
    except ConfigError as error:
        if source in error.message:
            raise
        raise ConfigError(f"{source}: {error.message}", fix=error.fix, **error.context) from error
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{source} does not say which graphs are planned: {type(error).__name__}: {error}",
            fix="name an engine's stats or events",
        ) from error


def _sizes(dispatch: Mapping[str, Any], source: str) -> Any:
    if "histogram" not in dispatch:
        raise ConfigError(
            f"{source} has no histogram: its counters were read from a metrics endpoint, which carries no sizes",
            fix="name the engine's event file (JsonLinesSink) or the JSON of its LLM.stats()",
        )
    return dispatch["histogram"]


def _dispatch(document: Any) -> dict[str, Any] | None:
    """The dispatch counters in ``document``, also where it is these alone."""
    if not isinstance(document, dict):
        return None
    found = document.get("dispatch", document)
    return found if isinstance(found, dict) and {"steps", "buckets"} <= found.keys() else None


def _document(source: str) -> Any:
    """The contents of ``source``, those of an event file as ``stats --json`` shows them and with the "planned" keys."""
    if is_address(source):
        raise ConfigError(
            f"{source} has no histogram: a metrics endpoint carries counters and no sizes",
            fix="name the engine's event file (JsonLinesSink) or the JSON of its LLM.stats()",
        )
    try:
        text = Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError, ValueError) as error:  # ValueError: a null byte
        raise ConfigError(f"{source} cannot be read: {error}", fix=_FIX) from error
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):  # it goes on over more lines, or is none
        head = None
    if isinstance(head, dict) and "event" in head:
        tally = read_json_lines(lines, name=source)
        return {**tally.snapshot(), "planned": list(tally.dispatch.key_states)}
    if isinstance(head, dict) and "dispatch" in head:  # one look a line; each counts from the start
        text = [line for line in lines if line.endswith("\n") or len(lines) == 1][-1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}", fix=_FIX) from error
