"""The registry of commands, and the group that loads a command's module only when it runs.

``ostinato --help`` lists names and summaries from the table below and imports no command, hence no
torch. To add a command: write ``cli/NAME.py`` with a function ``NAME`` (typer parameters, a docstring
that becomes its help), and add one line here. Called by `ostinato.cli.app`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ostinato._version import __version__
from ostinato.errors import OstinatoError

__all__ = ["COMMANDS", "build_command", "load_command"]

# Command -> one-line summary. The module and the function have the command's name, with _ for -.
COMMANDS: dict[str, str] = {
    "bench": "Measure decode, prefill, start-up, serving and graphs, and leave evidence.",
    "demo": "Show a burst of requests on graphs, and compare the answers with eager.",
    "doctor": "Say what blocks the capture of a callable or model, where, and which breaks mend it.",
    "errors": "Explain an error code, or list them all.",
    "explain": "Show which graphs a mode gives here, what a step runs as, and why.",
    "generate": "Generate text from prompts, and say how the steps were run.",
    "inspect": "Show what a captured graph consists of.",
    "memory": "Predict where an engine's memory goes, by owner, and how many KV tokens fit.",
    "plan": "Choose the sizes to capture for a traffic.",
    "qualify": "Compare every graph of a model with eager, on padded and poisoned batches.",
    "stats": "Show what an engine's steps did, from its event file or its metrics endpoint.",
}


class LazyGroup(TyperGroup):
    """A group whose members are placeholders until one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Swap the placeholder that ``args`` names for the real command."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        return (name, load_command(name) if name in COMMANDS else placeholder, rest)


class NamingCommand(TyperCommand):
    """A command whose errors name settings by its options."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except OstinatoError as error:
            from ostinato.cli.option_names import name_options

            name_options(error, self.params)
            raise


def load_command(name: str) -> Any:
    """Import the module of command ``name`` and build its typer command."""
    attribute = name.replace("-", "_")
    function = getattr(import_module(f"ostinato.cli.{attribute}"), attribute)
    holder = typer.Typer(add_completion=False)
    holder.command(name, cls=NamingCommand)(function)
    return typer.main.get_command(holder)


def _placeholder() -> None:
    raise AssertionError("a placeholder was run: LazyGroup did not swap it")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ostinato {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """CUDA Graphs for live traffic."""


def build_command() -> Any:
    """The root command, ready for ``.main(args)``."""
    app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_placeholder)
    return typer.main.get_command(app)
