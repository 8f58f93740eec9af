"""``ostinato doctor``: what blocks the capture of a callable or of a model's steps, where, and what mends it.

Exit code 0 if nothing blocks, 1 if something does, 2 if there is nothing to examine. What the callable prints
goes to standard error, so that the report stays readable by programs. Torch is imported when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.options import Attention, Device, Json, LoadFormat
from ostinato.cli.output import be_lenient, print_json
from ostinato.cli.targets import is_factory, load_call
from ostinato.engine.config import EngineConfig

if TYPE_CHECKING:
    from ostinato.runtime import Diagnosis

__all__ = ["doctor"]

EXIT_BLOCKED = 1


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:factory or package.module:factory, a function that returns (callable, example args[, "
            "kwargs]); or a model: hub name, folder or .gguf file."
        ),
    ],
    device: Device = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "dummy",
    show_all: Annotated[bool, typer.Option("--all", help="List friendly ops too.")] = False,
    as_json: Json = False,
) -> None:
    """Say what blocks the capture of a callable or model, where, and which breaks mend it."""
    with redirect_stdout(sys.stderr):
        found: Mapping[str, Diagnosis]
        if is_factory(target):
            found = {"": _examine_call(target, device)}
        else:
            found = _examine_model(
                EngineConfig(
                    model=target,
                    device=device,
                    attention=attention,
                    load_format=load_format,
                    mode="full_and_piecewise",
                    max_num_reqs=4,
                    max_num_batched_tokens=16,
                    decode_sizes=(4,),
                    token_sizes=(16,),
                )
            )
    if as_json:
        print_json(_document(target, found))
    else:
        _print(found, show_all=show_all)
    if any(diagnosis.is_blocked for diagnosis in found.values()):
        raise typer.Exit(EXIT_BLOCKED)


def _examine_call(target: str, device: str) -> Diagnosis:
    from ostinato.engine.execution.loading import find_device
    from ostinato.runtime import diagnose

    with nullcontext() if device == "auto" else find_device(device):
        fn, args, kwargs = load_call(target)
    return diagnose(fn, args, kwargs)


def _examine_model(config: EngineConfig) -> Mapping[str, Diagnosis]:
    from ostinato.cli.progress import progress_on_stderr
    from ostinato.engine.execution import Executor, examine_steps, load_model

    executor = Executor(load_model(config, progress=progress_on_stderr()))
    try:
        return examine_steps(executor)
    finally:
        executor.close()


def _document(target: str, found: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """One diagnosis as it is; a model's steps side by side, each op with its step."""
    documents = {step: diagnosis.to_dict() for step, diagnosis in found.items()}
    if list(documents) == [""]:
        return {"target": target, **documents[""]}
    joined: dict[str, Any] = {"target": target, "verdict": _worst(found)}
    for name in ("ops", "blockers"):
        joined[name] = [{"step": step, **op} for step, one in documents.items() for op in one[name]]
    for name in ("suggested_breaks", "advice", "notes"):
        joined[name] = list({str(item): item for one in documents.values() for item in one[name]}.values())
    joined["modes"] = {mode: outcome for one in documents.values() for mode, outcome in one["modes"].items()}
    return joined


def _worst(found: Mapping[str, Diagnosis]) -> str:
    verdicts = [str(diagnosis.verdict.value) for diagnosis in found.values()]
    return max(verdicts, key=["friendly", "conditional", "unfriendly"].index)


def _print(found: Mapping[str, Diagnosis], *, show_all: bool) -> None:
    from rich.console import Console

    from ostinato.cli.doctor_table import ops_table, summary

    be_lenient()
    console = Console(file=sys.stdout)
    for step, diagnosis in found.items():
        table = ops_table(diagnosis, title=step, show_all=show_all)
        console.print(table if table.row_count else f"{step} {table.caption}".strip(), highlight=False)
        console.print(summary(diagnosis), highlight=False, soft_wrap=True)
