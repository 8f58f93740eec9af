"""`ReplayView`: a graph's output, lent to the caller, that says so when it is read too late.

The memory is the graph's: a later replay overwrites it, without a trace in the tensor. So every use through torch
first compares the generation in which the view was made with the generation now. Made by `Delivery`, with
``GraphConfig(outputs="view")``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ostinato.errors import StaleOutputError
from ostinato.runtime.capture import Generation
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.nest import map_leaves

__all__ = ["Origin", "ReplayView"]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The replay that wrote an output."""

    key: GraphKey
    generation: Generation
    made: int
    """Its generation at delivery."""

    def check(self) -> None:
        """Raise `StaleOutputError` if a later replay may have overwritten the output."""
        now = self.generation.now
        if now != self.made:
            raise StaleOutputError(
                "an output of an earlier replay is used after a later one, which may have overwritten it",
                fix='clone() it before the next call, or use GraphConfig(outputs="copy")',
                key=str(self.key),
                generation=self.made,
                now=now,
            )


class ReplayView(torch.Tensor):
    """A tensor that may be used until the next replay. Results of ops on it are plain tensors, or views like it
    where they share its memory (slices, reshapes, results of in-place ops).

    Whatever torch does with it is checked when it begins: ops, ``out=``, indexing, iteration, printing, ``item``,
    ``tolist``, ``numpy``, ``data_ptr``, pickling, DLPack by ``__dlpack__``, Triton launches, use in any module, even
    its shape. Not checked: memory taken out of it in time and read later (a NumPy array, a pointer, a DLPack capsule,
    a storage, a ``copy.copy``); extensions in C++ that unpack it; ``torch.as_tensor``, ``torch.tensor`` and
    ``torch.utils.dlpack.to_dlpack``, which never ask it. ``torch.compile`` cannot trace the check and runs such ops
    uncompiled: give compiled code `unchecked`.

    Raises:
        StaleOutputError: from any checked use, once a later replay may have overwritten it.
    """

    _plain: torch.Tensor
    _origin: Origin

    @classmethod
    def of(cls, tensor: torch.Tensor, origin: Origin) -> ReplayView:
        """A view of the whole of ``tensor``, plain, which ``origin`` has written."""
        view = tensor.as_subclass(cls)
        view._plain, view._origin = tensor, origin
        return view

    def unchecked(self) -> torch.Tensor:
        """The plain tensor over the same memory, at your own risk: the next replay overwrites it and nothing tells."""
        return self._plain

    @property
    def is_stale(self) -> bool:
        """Whether a later replay may have overwritten it, so that any use would raise."""
        return self._origin.generation.now != self._origin.made

    def __iter__(self) -> Any:
        return iter(self.unbind(0))  # torch's own goes on without asking

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        origins: dict[int, Origin] = {}  # address of the memory -> who wrote it

        def checked(leaf: Any) -> Any:
            if not isinstance(leaf, ReplayView):
                return leaf
            leaf._origin.check()
            origins[leaf._plain.untyped_storage().data_ptr()] = leaf._origin
            return leaf._plain

        def lent_on(leaf: Any) -> Any:
            if type(leaf) is not torch.Tensor:
                return leaf
            origin = origins.get(leaf.untyped_storage().data_ptr())
            return leaf if origin is None else cls.of(leaf, origin)

        args, kwargs = map_leaves((args, kwargs or {}), checked)
        return map_leaves(func(*args, **kwargs), lent_on)
