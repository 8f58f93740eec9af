"""Where a callable keeps its tensors: module parameters and buffers, attributes, closure cells, globals.

A graph reads the memory that a tensor had at capture. Whether the callable would read the same today shows the
place from which it takes the tensor; its name is what an error should say. Found once, at capture.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

__all__ = ["Place", "places_in", "places_of"]

_TORCHS_OWN: Final = frozenset(vars(torch.nn.Module()))
"""Attributes of any module: tables of its parameters and hooks."""


_DEPTH: Final = 3
"""Containers in containers: a list of dicts of pairs. Ends those that hold themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One tensor's home."""

    name: str
    """As one would write it: ``layers.0.weight``, ``table``."""
    get: Callable[[], Any]
    """What stands there now; None if nothing does."""
    peek: Callable[[], Any]
    """The same at less cost, blind to a replaced submodule, of which torch tells."""
    tensor: torch.Tensor
    """What stood there when the place was found."""
    is_registered: bool
    """A module's parameter or buffer: torch tells when one is replaced by assignment."""


def places_of(fn: Any) -> list[Place]:
    """Places of the tensors that a module, method, function, partial or callable object can reach in one step."""
    return list(_of_callable(fn))


def places_in(state: Any) -> list[Place]:
    """Places in a module, a tensor, or mappings and sequences of these."""
    return list(_of_value("state", state, _constant(state)))


def _of_callable(fn: Any, *, enters_breaks: bool = True) -> Iterator[Place]:
    of_reached = functools.partial(_of_reached, enters_breaks=enters_breaks)
    if isinstance(fn, torch.nn.Module):
        yield from _of_module("", fn, _constant(fn))
    elif isinstance(fn, functools.partial):
        yield from _of_callable(fn.func, enters_breaks=enters_breaks)
        for name, value in (*((f"args[{i}]", v) for i, v in enumerate(fn.args)), *fn.keywords.items()):
            yield from of_reached(name, value, _constant(value))
    elif isinstance(fn, types.MethodType):
        yield from of_reached("", fn.__self__, _constant(fn.__self__))
    elif isinstance(fn, types.FunctionType):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield from of_reached(name, _in_cell(cell), functools.partial(_in_cell, cell))
        for name in fn.__code__.co_names:
            if name in fn.__globals__:
                get = functools.partial(fn.__globals__.get, name)
                yield from of_reached(name, fn.__globals__[name], get)
    else:
        yield from of_reached("", fn, _constant(fn))


def _of_reached(name: str, value: Any, get: Callable[[], Any], *, enters_breaks: bool = True) -> Iterator[Place]:
    """Places in what a callable has at hand: `_of_value`, attributes of a plain object, and what a break reaches."""
    yield from _of_value(name, value, get)
    point = getattr(value, "__ostinato_break__", None) if enters_breaks else None
    if point is not None:  # not those that it reaches in turn: they may reach it
        for place in _of_callable(point.fn, enters_breaks=False):
            yield dataclasses.replace(place, name=f"{name}.{place.name}")
    is_plain = hasattr(value, "__dict__") and not isinstance(
        value, torch.nn.Module | torch.Tensor | type | types.ModuleType | types.FunctionType | Mapping | list | tuple
    )
    for key, item in list(vars(value).items()) if is_plain else ():
        yield from _of_value(f"{name}.{key}" if name else key, item, functools.partial(_attribute, get, key))


def _of_value(
    name: str,
    value: Any,
    get: Callable[[], Any],
    *,
    peek: Callable[[], Any] | None = None,
    enters_modules: bool = True,
    depth: int = _DEPTH,
) -> Iterator[Place]:
    peek = peek or get
    if isinstance(value, torch.Tensor):
        yield Place(name, get, peek, value, is_registered=False)
    elif isinstance(value, torch.nn.Module):
        if enters_modules:
            yield from _of_module("" if name == "state" else name, value, get)
    elif isinstance(value, Mapping | list | tuple) and depth:
        find = _entry if isinstance(value, Mapping) else _item
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(item, torch.Tensor | torch.nn.Module | Mapping | list | tuple):
                entry, glance = functools.partial(find, get, key), functools.partial(find, peek, key)
                yield from _of_value(
                    f"{name}[{key!r}]", item, entry, peek=glance, enters_modules=enters_modules, depth=depth - 1
                )


def _of_module(name: str, root: torch.nn.Module, get_root: Callable[[], Any]) -> Iterator[Place]:
    for dotted, owner in root.named_modules():
        path = tuple(dotted.split(".")) if dotted else ()
        prefix = ".".join(part for part in (name, dotted) if part)
        # The last: plain attributes, which torch does not register.
        for kind in ("_parameters", "_buffers", "__dict__"):
            for key, value in getattr(owner, kind).items():
                get = functools.partial(_in_module, get_root, path, kind, key)
                full_name = f"{prefix}.{key}" if prefix else key
                peek = functools.partial(getattr(owner, kind).get, key)
                if isinstance(value, torch.Tensor):
                    yield Place(full_name, get, peek, value, is_registered=kind != "__dict__")
                elif kind == "__dict__" and key not in _TORCHS_OWN:  # modules in plain containers may be cyclic
                    yield from _of_value(full_name, value, get, peek=peek, enters_modules=False)


def _in_module(get_root: Callable[[], Any], path: tuple[str, ...], kind: str, key: str) -> Any:
    """What stands in the module that is at ``path`` today, below the one that the callable has at hand today."""
    module = get_root()
    for part in path:
        module = module._modules.get(part) if isinstance(module, torch.nn.Module) else None
    return getattr(module, kind).get(key) if isinstance(module, torch.nn.Module) else None


def _attribute(get: Callable[[], Any], key: str) -> Any:
    return getattr(get(), "__dict__", {}).get(key)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _entry(get: Callable[[], Any], key: Any) -> Any:
    """What a mapping, found anew, has under ``key``: it may have been replaced too."""
    mapping = get()
    return mapping.get(key) if isinstance(mapping, Mapping) else None


def _item(get: Callable[[], Any], index: int) -> Any:
    values = get()
    return values[index] if isinstance(values, list | tuple) and index < len(values) else None


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value
