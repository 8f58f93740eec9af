"""Measured times of steps by bucket size, from a file: that of measured dispatch, or a curve for each kind of step.

They hold for the device that they were measured on. Called by ``ostinato plan``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ostinato.cli.json_input import read_json
from ostinato.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from ostinato.runtime import CostCurve

__all__ = ["read_cost_curves"]

_KINDS = ("decode", "mixed")


def read_cost_curves(path: Path, *, partition: str | None) -> dict[str, CostCurve]:
    """By "decode" and "mixed", the time of a step by bucket size; a kind that was not measured is left out.

    Args:
        partition: which of the file's tables counts; None where it has one.

    Raises:
        ConfigError: the file cannot be read or is none, does not say where it was measured, was measured on another
            device, or has several tables and none was named.
        ForeignCostsError: the times in it mean something else than those of today.
        UnknownNameError: it has no such table.
    """
    from ostinato.runtime import CostCurve, graph_curves, parse_costs

    document = read_json(path)
    if isinstance(document, dict) and "tables" in document:
        origin, tables = parse_costs(document, name=path)
        _check_hardware(path, origin.get("hardware"))
        name = _table_name(path, list(tables), partition)
        try:
            return graph_curves(tables[name])
        except ConfigError as error:
            raise ConfigError(f"{path}, table {name!r}: {error.message}", fix=error.fix) from error
    if partition is not None:
        raise ConfigError(f"{path} has one curve for each kind of step", fix="leave out --partition")
    _check_hardware(path, document.get("hardware") if isinstance(document, dict) else None)
    found = {}
    for kind in _KINDS:
        if kind in document:
            if not isinstance(document[kind], dict):
                raise ConfigError(f"{path}: '{kind}' must map sizes to times", fix='write {"1": 0.8, "64": 1.3}')
            found[kind] = CostCurve(document[kind])
    if not found:
        raise ConfigError(f"{path} has no costs", fix='write {"hardware": "NVIDIA H200", "decode": {"1": 0.8}}')
    return found


def _table_name(path: Path, names: list[str], asked: str | None) -> str:
    if asked is not None:
        if asked not in names:
            raise UnknownNameError.of(f"partition in {path}", asked, names)
        return asked
    if len(names) != 1:
        raise ConfigError(
            f"{path} has the costs of {', '.join(names) or 'no partition'}",
            fix="choose one with --partition" if names else "measure again",
        )
    return names[0]


def _check_hardware(path: Path, there: Any) -> None:
    if not isinstance(there, str):
        raise ConfigError(
            f"{path} does not say where it was measured", fix='write {"hardware": "NVIDIA H200", "decode": {"1": 0.8}}'
        )
    gpu = _gpu_name()
    if gpu is not None and there not in (gpu, _processor_name()):
        raise ConfigError(
            f"{path} was measured on {there}, and this is {gpu}",
            fix="measure here: graphs and padding cost something else on each device",
            expected=gpu,
            got=there,
        )
    if gpu is None and there != _processor_name():
        typer.echo(f"{path} was measured on {there}: there is no GPU here to check that against", err=True)


def _gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _processor_name() -> str:
    import torch

    from ostinato.runtime import hardware_name

    return hardware_name(torch.device("cpu"))
