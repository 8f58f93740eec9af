"""``ostinato doctor``: what blocks the capture of a callable or of a model's steps, where, and what mends it.

Exit code 0 if nothing blocks, 1 if something does, 2 if there is nothing to examine. What the callable prints
goes to standard error, so that the report stays readable by programs. Torch is imported when the command runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ostinato.cli.options import Attention, Compile, Device, Json, LoadFormat, Mode, Partition
from ostinato.cli.output import be_lenient, print_json
from ostinato.cli.targets import is_factory, load_call
from ostinato.engine.config import EngineConfig
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.runtime import Diagnosis

__all__ = ["doctor"]

EXIT_BLOCKED = 1
_ALL: Final = ("full", "piecewise", "breakable")
_TRIED: Final = {
    "auto": _ALL,
    "full_and_piecewise": _ALL,
    "full": _ALL[:1],
    "full_decode_only": _ALL[:1],
    "piecewise": _ALL[1:],
}
"""What is tried of a callable of which nobody knows the steps, by mode."""


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:factory or package.module:factory, a function that returns (callable, example args[, "
            "kwargs]); or a model: hub name, folder or .gguf file."
        ),
    ],
    mode: Mode = "full_and_piecewise",
    partition: Partition = "fx",  # beside breakable, which is tried in any case: it needs no tracer
    compiler: Compile = "none",
    device: Device = "auto",
    attention: Attention = "auto",
    load_format: LoadFormat = "dummy",
    show_all: Annotated[bool, typer.Option("--all", help="List friendly ops too.")] = False,
    as_json: Json = False,
) -> None:
    """Say what blocks the capture of a callable or model, where, and which breaks mend it."""
    config = EngineConfig(
        model=target,
        mode=mode,
        partition=partition,
        compile=compiler,
        device=device,
        attention=attention,
        load_format=load_format,
        max_num_reqs=4,
        max_num_batched_tokens=16,
        decode_sizes=(4,),
        token_sizes=(16,),
    )
    if mode == "none":
        raise ConfigError("mode none makes no graphs: there is nothing to examine", fix="choose a mode with graphs")
    if partition == "auto":
        raise ConfigError("partition auto goes by measured costs, which a doctor has none of", fix="name a partition")
    with redirect_stdout(sys.stderr):
        found = {"": _examine_call(config)} if is_factory(target) else _examine_model(config)
    if as_json:
        print_json(_document(target, found))
    else:
        _print(found, show_all=show_all)
    if any(diagnosis.is_blocked for diagnosis in found.values()):
        raise typer.Exit(EXIT_BLOCKED)


def _examine_call(config: EngineConfig) -> Diagnosis:
    from ostinato import runtime
    from ostinato.engine.execution.loading import find_device
    from ostinato.runtime.nest import tensors

    with nullcontext() if config.device == "auto" else find_device(config.device):
        fn, args, kwargs = load_call(config.model)
    resolved = runtime.resolve_mode(
        runtime.ModeRequest(
            mode=runtime.Mode.FULL_AND_PIECEWISE,
            knows_requests=True,
            partition=runtime.Partition(config.partition),
            compiler=runtime.Compiler(config.compile),
            device_type=next((tensor.device.type for tensor in tensors((args, kwargs))), "cpu"),
        )
    )
    found = runtime.diagnose(
        fn,
        args,
        kwargs,
        modes=_TRIED[config.mode],
        partition=resolved.partition,
        compiler=resolved.compiler,
    )
    return _noting(resolved.reasons, found)


def _examine_model(config: EngineConfig) -> Mapping[str, Diagnosis]:
    from ostinato.cli.progress import progress_on_stderr
    from ostinato.engine.execution import Executor, examine_steps, load_model

    executor = Executor(load_model(config, progress=progress_on_stderr()))
    try:
        reasons = executor.graphed.mode.reasons
        return {step: _noting(reasons, diagnosis) for step, diagnosis in examine_steps(executor).items()}
    finally:
        executor.close()


def _noting(reasons: Sequence[str], found: Diagnosis) -> Diagnosis:
    """``found`` with the reasons why mode, partition or compiler are not what was asked."""
    return dataclasses.replace(found, notes=(*reasons, *found.notes))


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
    modes: dict[str, Any] = {}
    for step, one in documents.items():
        for mode, outcome in one["modes"].items():
            if mode not in modes or (modes[mode]["works"] and not outcome["works"]):  # the step that it fails for tells
                modes[mode] = {"step": step, **outcome}
    joined["modes"] = modes
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
