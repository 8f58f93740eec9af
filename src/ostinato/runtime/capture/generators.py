"""Random generators of the user's own: which ones a callable draws from, and where they stand.

Torch registers the default generators with every graph, so that each replay draws anew; one of the user's own is
registered by whoever captures, before the capture begins. `GeneratorLog` notes them while ops are watched, from what
warm-up gives to ops. Drawing from them in kernels that no watch sees is told by the user (``state=`` of `Graphed`).
Used by both backends, and by whatever puts random state back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ostinato.runtime.nest import leaves

__all__ = ["GeneratorLog", "GeneratorStates", "generators_in"]


def generators_in(value: Any) -> Iterator[torch.Generator]:
    """The generators in nested tuples, lists and mappings."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Generator))


class GeneratorLog:
    """The user's own generators that one backend has met, in the order of their first use.

    It holds them, so none can die and leave its address to another. Default generators are never entered.

    Args:
        device: which captures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first_seen: dict[int, tuple[torch.Generator, torch.Tensor]] = {}  # by address, with the state then

    def note(self, generator: torch.Generator) -> None:
        """Enter ``generator``, before it is drawn from, unless it is known or a default one. Not in a capture."""
        if _address(generator) not in self._first_seen and not _is_default(generator):
            self._first_seen[_address(generator)] = (generator, generator.get_state())

    def is_missing(self, generator: torch.Generator) -> bool:
        """Whether it is the device's own to draw from, and no graph that begins now would know it."""
        return self._is_here(generator) and _address(generator) not in self._first_seen and not _is_default(generator)

    def entries(self) -> list[torch.Generator]:
        """All, those of other devices too: breaks may draw from them."""
        return [generator for generator, _ in self._first_seen.values()]

    def to_register(self) -> list[torch.Generator]:
        """Those of the device that captures."""
        return [generator for generator in self.entries() if self._is_here(generator)]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put all back, those too that are met meanwhile."""
        known = len(self._first_seen)
        before = [(generator, generator.get_state()) for generator in self.entries()]
        try:
            yield
        finally:
            for generator, state in (*before, *list(self._first_seen.values())[known:]):
                generator.set_state(state)

    def _is_here(self, generator: torch.Generator) -> bool:
        device = generator.device
        return device.type == self._device.type and device.index in (None, self._device.index)


class GeneratorStates:
    """Where the random generators of the host and of ``device``, and ``own`` ones, stand now."""

    def __init__(self, device: torch.device, own: Iterable[torch.Generator] = ()) -> None:
        generators = [torch.default_generator, *_default_on(device), *own]
        self._states = [(generator, generator.get_state()) for generator in generators]

    def have_moved(self) -> bool:
        """Whether any stands elsewhere by now."""
        return any(not torch.equal(generator.get_state(), state) for generator, state in self._states)

    def restore(self) -> None:
        """Put them back there."""
        for generator, state in self._states:
            generator.set_state(state)


def _default_on(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return []
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.cuda.default_generators[index]]


def _is_default(generator: torch.Generator) -> bool:
    return _address(generator) in map(_address, (torch.default_generator, *torch.cuda.default_generators))


def _address(generator: Any) -> int:
    """Each op is handed a Python object of its own, so one generator is told from another by its address alone."""
    return int(generator._cdata)
