"""Filling parameters from tensors with Hugging Face names; everything that does not fit is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor

from ostinato.errors import CheckpointError

__all__ = ["fill_from_checkpoint"]

_LISTED = 6  # names of a kind that an error lists


def fill_from_checkpoint(
    targets: Mapping[str, Tensor],
    items: Iterable[tuple[str, Tensor]],
    *,
    ignored: Collection[str] = (),
    put: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Copy each item into the target of its name.

    Args:
        targets: what each name fills; merged projections appear as rows of one parameter.
        items: names and tensors, each read once.
        ignored: names that may be there and are not needed. Rotary buffers never are.
        put: called with each target and what belongs there, instead of the copy.

    Raises:
        CheckpointError: tensors are missing, unexpected, given twice or of the wrong shape; it names them.
    """
    seen: set[str] = set()
    problems: dict[str, list[str]] = {
        "unexpected": [],
        "given twice": [],
        "of the wrong shape": [],
        "not floating-point": [],
    }
    with torch.no_grad():
        for name, tensor in items:
            if name in ignored or _is_derived(name):
                continue
            target = targets.get(name)
            if target is None:
                problems["unexpected"].append(name)
            elif name in seen:
                problems["given twice"].append(name)
            elif tensor.shape != target.shape:
                problems["of the wrong shape"].append(f"{name} {list(tensor.shape)} for {list(target.shape)}")
            elif not tensor.is_floating_point():
                problems["not floating-point"].append(f"{name} {tensor.dtype}")
            else:
                put(target, tensor)
            seen.add(name)
    problems["missing"] = [name for name in targets if name not in seen]
    if any(problems.values()):
        raise CheckpointError(
            "the checkpoint does not fit the model: "
            + "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names),
            fix="check that config.json and the weights belong together and that every shard is there",
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _is_derived(name: str) -> bool:
    """Buffers that old checkpoints carry, and that the engine computes itself."""
    return name.endswith(("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"))
