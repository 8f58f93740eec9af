"""`Fault`: one way in which graph replay goes wrong, planted in a small program.

A fault runs its program twice: ``protected`` through the public API, where it must be caught or cannot
happen, and ``unprotected`` as a program that talks to the capture backend itself, where it must go wrong; a fixture
that cannot fail proves nothing. Used by the conformance tests; a new backend runs them too. The documentation's table
of faults is written from these fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import OstinatoError

__all__ = ["Fault", "Outcome", "Plant", "agree"]

Outcome = tuple[Any, Any]
"""``(expected, got)``: tensors of one shape, or plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """The program with the fault in it. Both take a device: "cpu" (simulated graphs) or "cuda"."""

    protected: Callable[[str], Outcome]
    """Through the public API: raises the fault's typed error, or the outcome agrees."""
    unprotected: Callable[[str], Outcome]
    """Without the protection: the outcome disagrees. Promised on `Fault.control_device` only."""
    traced: Callable[[str, str], Outcome] | None = None
    """``protected`` where the callable is traced, by device and partition ("fx" or "inductor"); None: tracing makes no
    difference to the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One class of failure."""

    row: int
    """Stable number of the class."""
    title: str
    source: str
    """Where users of other systems met it."""
    protection: str
    """What stands against it, in one sentence."""
    cost: str
    """What that takes, when and how often."""
    plant: Plant
    caught_by: type[OstinatoError] | None = None
    """The error that ``plant.protected`` raises; None if the fault is prevented by construction."""
    caught_when_traced: type[OstinatoError] | None = None
    """The same for ``plant.traced``."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Where ``plant.protected`` runs."""
    control_device: str = "cpu"
    """Where ``plant.unprotected`` goes wrong. "cuda": the simulated backend cannot show it."""


def agree(outcome: Outcome) -> bool:
    """Whether what was got is what was expected, bit for bit."""
    expected, got = outcome
    if isinstance(expected, torch.Tensor):
        return torch.equal(expected.cpu(), got.cpu())
    return bool(expected == got)
