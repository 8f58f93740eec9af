"""Tells of a module that is imported for the first time, once it is there, for as long as a context is held.

Python has one place for this, the finders of `sys.meta_path`. Ours finds nothing by itself: it lets the others find the
module, and follows its loader for one import.
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
    """Call ``then`` with the top-level module ``name`` after its own code has run, if that happens meanwhile."""
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
        self._is_finding = False  # other finders may ask all finders too
        self.is_open = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`. Python holds the module's lock meanwhile."""
        if name != self._name or self._is_finding:
            return None
        self._is_finding = True
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._is_finding = False
        if spec is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module  # the loader's, or another follower's

        def exec_module(module: ModuleType) -> None:
            with suppress(AttributeError):
                del loader.exec_module
            run(module)
            if self.is_open:
                self._then(module)

        with suppress(AttributeError):  # a loader that takes no attribute
            loader.exec_module = exec_module
