"""Measured times of steps by bucket size, from a file: that of measured dispatch, or a curve for each kind of step.

They hold for the device and the model that they were measured on. Called by ``ostinato plan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ostinato.cli.json_input import read_json
from ostinato.errors import ConfigError, ForeignCostsError, UnknownNameError

if TYPE_CHECKING:
    from ostinato.runtime import CostCurve

__all__ = ["read_cost_curves"]

_KINDS = ("decode", "mixed")


def read_cost_curves(path: Path, *, partition: str | None, model: str | None = None) -> dict[str, CostCurve]:
    """By "decode" and "mixed", the time of a step by bucket size; a kind that was not measured is left out.

    Args:
        partition: which of the file's tables counts; None where it has one.
        model: whose costs they must be, as `EngineConfig.model`; None says on standard error whose they are.

    Raises:
        ConfigError: the file cannot be read or is none, does not say where it was measured, was measured on another
            device, or has several tables and none was named.
        ForeignCostsError: the times in it mean something else than those of today, or are those of another model.
        UnknownNameError: it has no such table.
        The errors of `resolve_model` and `ModelConfig.from_hf`.
    """
    from ostinato.runtime import CostCurve, graph_curves, parse_costs

    document = read_json(path)
    if isinstance(document, dict) and "tables" in document:
        origin, tables = parse_costs(document, name=path)
        if model is not None:
            _check_model(path, origin, model)
        _check_hardware(path, origin.get("hardware"), whose=origin.get("model") if model is None else None)
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


def _check_model(path: Path, origin: Mapping[str, str], model: str) -> None:
    """By the configuration and not by the name: the same model may lie in another folder, and another one in this."""
    from ostinato.engine.execution.model_identity import model_identity
    from ostinato.engine.models import ModelConfig
    from ostinato.engine.weights import resolve_model

    here = model_identity(ModelConfig.from_hf(resolve_model(model, load_format="dummy").config))
    there = origin.get("model config", "unknown")
    if there != here:
        raise ForeignCostsError(
            f"{path} was measured with model {origin.get('model', 'unknown')}, and that is not {model}",
            fix=f"measure this one: `ostinato explain --measure --model {model} --costs FILE`; or name the other",
            expected=here,
            got=there,
        )


def _check_hardware(path: Path, there: Any, *, whose: Any = None) -> None:
    """Refuse times of another device; tell ``whose`` they are where nobody has checked the model."""
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
    is_unchecked = gpu is None and there != _processor_name()
    if is_unchecked or whose:
        what = f"has the costs of {whose} on" if whose else "was measured on"
        why = ": there is no GPU here to check that against" if is_unchecked else ""
        typer.echo(f"{path} {what} {there}{why}", err=True)


def _gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _processor_name() -> str:
    import torch

    from ostinato.runtime import hardware_name

    return hardware_name(torch.device("cpu"))
