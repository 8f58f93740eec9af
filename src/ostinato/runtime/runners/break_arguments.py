"""Whose memory the arguments of breaks are, and what keeping it costs.

A replay gives a break the tensors of its capture again. Those that an earlier segment of the same plan has made are
rewritten before each run, so their memory may meanwhile serve other keys ("recycled"); all others a plan must hold.
Noted at capture, added up for `Graphed.break_argument_bytes` and `Graphed.inspect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.nest import tensors

__all__ = ["ArgumentBytes", "ArgumentOwner", "BreakArgument", "add_up", "classify_arguments"]


class ArgumentOwner(StrEnum):
    """Who writes the memory of a break's argument."""

    SEGMENT = "segment"
    """An earlier segment of the same plan, at each replay."""
    BRIDGE = "bridge"
    """An earlier break of the plan, through a bridge."""
    OUTSIDE = "outside"
    """Nobody in the plan: an input, a weight, or what an eager region has made. Also what is in doubt."""


@dataclass(frozen=True, slots=True, eq=False)
class BreakArgument:
    """The memory of one tensor argument, as it was at capture."""

    owner: ArgumentOwner
    num_bytes: int
    """Of its whole storage, which is what holding the tensor keeps."""
    storage: StorageWeakRef
    """Keeps nothing; tells storages apart, also those that have had one address in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentBytes:
    """Bytes of break arguments, each storage once."""

    segment: int = 0
    """Made by segments."""
    bridge: int = 0
    outside: int = 0
    """Of these the inputs and weights would be there without any break."""

    @property
    def recycled(self) -> int:
        """What plans hold with ``ownership="recycled"``."""
        return self.bridge + self.outside

    @property
    def owned(self) -> int:
        """What they hold with ``ownership="owned"``."""
        return self.segment + self.recycled

    def __str__(self) -> str:
        return f"{self.owned:,} bytes with ownership owned, {self.recycled:,} with recycled"

    def to_dict(self) -> dict[str, int]:
        """``{"segment", "bridge", "outside", "owned", "recycled"}``."""
        return {
            "segment": self.segment,
            "bridge": self.bridge,
            "outside": self.outside,
            "owned": self.owned,
            "recycled": self.recycled,
        }


def classify_arguments(backend: CaptureBackend, given: Any, bridges: Iterable[torch.Tensor]) -> list[BreakArgument]:
    """The memory of the tensors in ``given``, a break's arguments; call between segments, inside the session.

    Args:
        bridges: of the plan so far.
    """
    known = {bridge.untyped_storage().data_ptr() for bridge in bridges}
    found = []
    for tensor in tensors(given):
        storage = tensor.untyped_storage()
        owner = ArgumentOwner.OUTSIDE
        if backend.has_made(tensor):
            owner = ArgumentOwner.SEGMENT
        elif storage.data_ptr() in known:
            owner = ArgumentOwner.BRIDGE
        found.append(BreakArgument(owner, storage.nbytes(), StorageWeakRef(storage)))
    return found


def add_up(arguments: Iterable[BreakArgument]) -> ArgumentBytes:
    """The bytes of ``arguments``, of one plan or of many."""
    each = {argument.storage.cdata: argument for argument in arguments}
    sums = dict.fromkeys(ArgumentOwner, 0)
    for argument in each.values():
        sums[argument.owner] += argument.num_bytes
    return ArgumentBytes(
        segment=sums[ArgumentOwner.SEGMENT], bridge=sums[ArgumentOwner.BRIDGE], outside=sums[ArgumentOwner.OUTSIDE]
    )
