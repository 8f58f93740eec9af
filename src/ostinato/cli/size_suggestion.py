"""Sizes that suit an engine's steps better than those it has, from what it has told: `LLM.suggest_sizes` from outside.

Called by ``ostinato stats --suggest``; loads no torch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from ostinato.cli.traffic_input import read_planned
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.runtime import SizeSuggestion

__all__ = ["show_suggestion", "suggestion_of"]


def suggestion_of(source: str) -> SizeSuggestion:
    """What the engine's own `suggest_sizes` would say, with its thresholds.

    Where an older file does not tell how large a mixed step the engine would capture, none larger than it has is
    suggested.

    Raises:
        ConfigError: ``source`` cannot be read, has no sizes, or does not say which graphs are planned.
    """
    from ostinato.runtime import GraphKey, PlannedSizes, suggest_sizes

    histogram, names, most = read_planned(source)
    try:
        planned = PlannedSizes.of(GraphKey.parse(name) for name in names)
    except ValueError as error:
        raise ConfigError(
            f"{source} names a graph that cannot be: {error}", fix="name an engine's stats or events"
        ) from error
    return suggest_sizes(
        planned,
        {"decode": histogram.decode, "mixed": histogram.mixed},
        limits={"decode": max(histogram.decode, default=1), "mixed": most or max(planned.mixed, default=1)},
    )


def show_suggestion(found: SizeSuggestion) -> None:
    """Say it, and the settings that follow it."""
    typer.echo(found.reason)
    settings = {"decode_sizes": found.decode_sizes, "token_sizes": found.sizes}
    told = {name: list(sizes) for name, sizes in settings.items() if sizes is not None}
    if told:
        typer.echo(f"settings for --config: {json.dumps(told)}")
