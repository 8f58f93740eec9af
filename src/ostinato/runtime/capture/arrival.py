"""Tells of a module that is imported for the first time, once it is there, for as long as a context is held.

Python has one place for this, the finders of `sys.meta_path`. Ours finds nothing by itself: it lets the others find the
module, and stands in for its loader until that has run it. The loader itself is left alone: it may serve more modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["on_arrival"]


@contextmanager
def on_arrival(name: str, then: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call ``then`` with the top-level module ``name`` after its own code has run, if that happens meanwhile.

    A folder without code (a namespace package) does not arrive.
    """
    finder = _Follower(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.is_open = False
        with suppress(ValueError):
            sys.meta_path.remove(finder)


class _Follower:
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._is_asking = False  # other finders may ask all finders too
        self.is_open = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`. Python holds its import lock meanwhile."""
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._is_asking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Following(spec.loader, self._arrived)  # type: ignore[assignment]
        return spec

    def _ask_others(self, *asked: Any) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)  # Python passes over old ones
            spec: ModuleSpec | None = None if find_spec is None else find_spec(*asked)
            if spec is not None:
                return spec
        return None

    def _arrived(self, module: ModuleType) -> None:
        if self.is_open:
            self._then(module)


class _Following:
    """A module's loader, until it has run the module."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)
