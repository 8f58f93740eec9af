"""``file.py:factory`` and ``package.module:factory``: find the factory, call it, check what it returns.

A factory takes nothing and returns ``(callable, example args)`` or ``(callable, example args, kwargs)``. Each way
in which that can go wrong is a `TargetError` of its own. Called by ``ostinato doctor``; loads no torch itself.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ostinato.errors import OstinatoError, TargetError

__all__ = ["Call", "is_factory", "load_call"]

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_SHAPE = "return (callable, (arg, ...)) or (callable, (arg, ...), {name: value})"


def is_factory(target: str) -> bool:
    """Whether ``target`` names a factory; otherwise it is a model's name or folder."""
    return ":" in target or target.endswith(".py")


def load_call(target: str) -> Call:
    """The callable and its example call.

    Raises:
        TargetError: no such file, module or function, the module or the factory raises, or the factory returns
            something else than a callable with its arguments.
    """
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier():
        raise TargetError(f"{target!r} names no factory", fix="write file.py:factory or package.module:factory")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    factory = getattr(module, name, None)
    if not callable(factory):
        near = difflib.get_close_matches(name, [n for n, v in vars(module).items() if callable(v)], n=1)
        raise TargetError(
            f"{where} has no function {name!r}",
            fix=f"did you mean {near[0]!r}?" if near else f"define it; it must {_SHAPE}",
        )
    with _importable(Path.cwd()):
        try:
            made = factory()
        except OstinatoError:
            raise
        except Exception as error:
            raise TargetError(
                f"the factory {target} raises {type(error).__name__}: {error}",
                fix="a factory takes no arguments; OSTINATO_TRACEBACK=1 shows where it failed",
            ) from error
    return _checked(target, made)


def _checked(target: str, made: Any) -> Call:
    got = type(made).__name__
    if isinstance(made, tuple):
        got = "(" + ", ".join(type(part).__name__ for part in made) + ")"
        fn, args, kwargs = (*made, {})[:3] if len(made) in (2, 3) else (None, None, None)
        if callable(fn) and isinstance(args, tuple) and isinstance(kwargs, dict):
            return fn, args, kwargs
    raise TargetError(f"the factory {target} returns something else than a call", fix=f"it must {_SHAPE}", got=got)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"there is no file {path}", fix="name a Python file: file.py:factory")
    name = f"ostinato_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} cannot be imported", fix="name a Python file: file.py:factory")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    with _importable(path.resolve().parent), _import_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    with _importable(Path.cwd()), _import_errors(name):
        return importlib.import_module(name)


@contextmanager
def _import_errors(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise TargetError(
            f"{where} cannot be imported: {type(error).__name__}: {error}",
            fix="OSTINATO_TRACEBACK=1 shows where it failed",
        ) from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of ``folder`` can be imported, as if the target were run there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
