"""Try a break without touching the user's source: route a function through `graph_break` for a while.

The function object keeps its identity (modules, closures and registries hold it); only its code is swapped for
a trampoline with as many free variables, and put back afterwards. A function that is defined anew in each
call has no object to swap: there its code is replaced among the constants of the function that defines it.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ostinato.runtime.breaks import graph_break

__all__ = ["ROUTES", "Route", "find_route", "routed", "searchable_heap"]

ROUTES: dict[int, Callable[..., Any]] = {}
"""What trampolines call, by number. They look it up instead of holding it, so that Dynamo can follow them."""

_NOT_A_BODY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Route:
    """How calls of ``code`` can be routed: its own function objects, or those of the functions that define it."""

    code: CodeType
    functions: tuple[FunctionType, ...]
    is_defined_per_call: bool = False


def find_route(code: CodeType, callers: Iterable[CodeType]) -> Route | None:
    """The route for calls of ``code``, or None if it has none (a comprehension, a generator, a lambda).

    Args:
        callers: codes that may define it, if it is defined anew in each call.
    """
    if code.co_flags & _NOT_A_BODY or code.co_name.startswith("<"):
        return None
    definers = [c for c in callers if any(const is code for const in c.co_consts)]
    if definers:
        functions = tuple(f for c in definers for f in _functions_of(c))
        return Route(code, functions, is_defined_per_call=True) if functions else None
    functions = tuple(_functions_of(code))
    return Route(code, functions) if functions else None


@contextmanager
def searchable_heap() -> Iterator[None]:
    """Within, `find_route` also finds functions that the application has frozen out of garbage collection."""
    if gc.get_freeze_count() == 0:
        yield
        return
    gc.collect()  # what is garbage now shall not be frozen below
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()


@contextmanager
def routed(routes: Iterable[Route]) -> Iterator[None]:
    """Within, every call of the routes' functions is a break. For one thread; the old code returns in any case."""
    # Definers first: a function that is routed itself takes its replaced constants along.
    ordered = sorted(routes, key=lambda route: not route.is_defined_per_call)
    saved: list[tuple[FunctionType, CodeType]] = []
    numbers: list[int] = []
    try:
        for route in ordered:
            for function in route.functions:
                number = max(ROUTES, default=0) + 1
                numbers.append(number)
                saved.append((function, function.__code__))
                if route.is_defined_per_call:
                    ROUTES[number] = _caller_of_nested(route.code, function.__globals__)
                    stand_in = _nested_trampoline(route.code, number)
                    consts = tuple(stand_in if c is route.code else c for c in function.__code__.co_consts)
                    function.__code__ = function.__code__.replace(co_consts=consts)
                else:
                    ROUTES[number] = graph_break(_copy(function))
                    function.__code__ = _trampoline(function.__code__, number)
        yield
    finally:
        for function, code in reversed(saved):
            function.__code__ = code
        for number in numbers:
            ROUTES.pop(number, None)


def _functions_of(code: CodeType) -> list[FunctionType]:
    return [r for r in gc.get_referrers(code) if isinstance(r, FunctionType) and r.__code__ is code]


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


_LOOK_UP = f"from {__name__} import ROUTES as _ostinato_routes"


def _trampoline(code: CodeType, number: int) -> CodeType:
    """Code that passes what it gets to ``ROUTES[number]``, with the signature and free variables of ``code``.

    The signature stays because Dynamo remembers it for a function object, beyond the swap.
    """
    names = [f"_free{i}" for i in range(len(code.co_freevars))]
    mention = f"        if False: {', '.join(names)}\n" if names else ""  # makes them free, is never run
    shown, positional, keyword = _signature(code)
    source = (
        f"def _outer({', '.join(names)}):\n"
        f"    def {code.co_name}({shown}):\n{mention}"
        f"        {_LOOK_UP}\n"
        f"        return _ostinato_routes[{number}](*{positional}, **{keyword})\n"
        f"    return {code.co_name}\n"
    )
    return _built(source, len(names))


def _nested_trampoline(code: CodeType, number: int) -> CodeType:
    """Like `_trampoline`, passing its cells first: they are of the function object that this call has made."""
    shown, positional, keyword = _signature(code)
    cells = ", ".join(code.co_freevars)
    source = (
        f"def _outer({cells}):\n"
        f"    def {code.co_name}({shown}):\n"
        f"        def _ostinato_cells(): return ({cells}{',' if cells else ''})\n"
        f"        {_LOOK_UP}\n"
        f"        return _ostinato_routes[{number}](_ostinato_cells.__closure__, {positional}, {keyword})\n"
        f"    return {code.co_name}\n"
    )
    return _built(source, len(code.co_freevars))


def _signature(code: CodeType) -> tuple[str, str, str]:
    """As source: parameters of ``code`` without defaults, a tuple of the positional and a dict of the keyword ones."""
    names = list(code.co_varnames)
    positional, keyword = names[: code.co_argcount], names[code.co_argcount :][: code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    shown, values, pairs = list(positional), list(positional), [f"{k!r}: {k}" for k in keyword]
    if code.co_posonlyargcount:
        shown.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        values.append(f"*{rest[0]}")
        shown.append(f"*{rest.pop(0)}")
    elif keyword:
        shown.append("*")
    shown += keyword
    if code.co_flags & inspect.CO_VARKEYWORDS:
        shown.append(f"**{rest[0]}")
        pairs.append(f"**{rest[0]}")
    return ", ".join(shown), f"({', '.join(values)}{',' if values else ''})", f"{{{', '.join(pairs)}}}"


def _caller_of_nested(code: CodeType, names: dict[str, Any]) -> Callable[..., Any]:
    def call(closure: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = FunctionType(code, names, code.co_name, None, closure)
        function.__qualname__ = getattr(code, "co_qualname", code.co_name)
        return graph_break(function)(*args, **kwargs)

    return call


def _built(source: str, num_free: int) -> CodeType:
    scope: dict[str, Any] = {}
    exec(source, scope)
    code: CodeType = scope["_outer"](*[None] * num_free).__code__
    return code
