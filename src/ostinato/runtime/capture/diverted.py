"""Lets a function of somebody else's run through one of ours, for as long as a context is held.

To put another function under its name would miss whoever took it before: ``wait = side.wait_stream``, or a name that
was imported. So the function stays, and its code is exchanged. What is written in C has none; there the name is all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

__all__ = ["diverted"]

_PLACE = "where the replacement goes"
_SOURCE = f"""
def holder({{variables}}):
    def call(*args, **named):
        if False:
            ({{variables}})
        replacement = {_PLACE!r}
        return replacement(*args, **named)
"""


@contextmanager
def diverted(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Calls of ``owner.name`` are calls of what ``wrap`` makes of it, by whatever reference they are made.

    ``wrap`` is given a function that does what the original did. Diversions of one function end in reverse order.
    """
    function = getattr(owner, name)
    if not isinstance(function, FunctionType):
        ours = wrap(function)
        setattr(owner, name, ours)
        try:
            yield
        finally:
            if getattr(owner, name) is ours:  # else somebody has put another there meanwhile
                setattr(owner, name, function)
        return
    code = function.__code__
    original = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    function.__code__ = _calling(wrap(original), code)
    try:
        yield
    finally:
        function.__code__ = code


def _calling(replacement: Callable[..., Any], code: CodeType) -> CodeType:
    """Code that calls ``replacement``, with the free variables of ``code``: a function takes no other."""
    template = _template(len(code.co_freevars))
    return template.replace(
        co_freevars=code.co_freevars,  # under their names, as a debugger shows them
        co_consts=tuple(replacement if constant == _PLACE else constant for constant in template.co_consts),
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
    )


@functools.cache
def _template(num_free_variables: int) -> CodeType:
    variables = ", ".join(f"variable_{number}" for number in range(num_free_variables))
    return _inner(_inner(compile(_SOURCE.format(variables=variables), __file__, "exec")))


def _inner(code: CodeType) -> CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))
