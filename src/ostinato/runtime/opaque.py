"""`opaque_op`: a kernel that no tracer can enter, as one op that stays inside a segment.

Triton launched by hand, a ctypes call, a kernel that compiles on its first call: Dynamo cannot trace them, and
simulated graphs cannot see them. Wrapped, each is one op with declared results and mutations, in every
partition and on every device. Unlike a break it must obey the rules of capture itself.
"""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable
from keyword import iskeyword
from typing import Any, TypeVar, overload

import torch

from ostinato.errors import ConfigError, UntraceableError
from ostinato.runtime.nest import tensors

__all__ = ["opaque_op"]

NAMESPACE = "ostinato_ops"
_names: set[str] = set()
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

F = TypeVar("F", bound=Callable[..., Any])

_serial = itertools.count()


@overload
def opaque_op(fn: F, /) -> F: ...
@overload
def opaque_op(
    *, mutates: tuple[str, ...] = (), fake: Callable[..., Any] | None = None, name: str | None = None
) -> Callable[[F], F]: ...
def opaque_op(
    fn: F | None = None,
    /,
    *,
    mutates: tuple[str, ...] = (),
    fake: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Wrap ``fn`` as a custom op. Its parameters and result need annotations (tensors, numbers, strings). It has no
    gradients.

    Args:
        fn: launches the kernel on the current stream. Results must be fresh tensors, no views of arguments.
        mutates: names of tensor parameters that it writes in place.
        fake: takes the same arguments and returns empty tensors of the results' shapes and dtypes. Needed if
            ``fn`` returns tensors and a compiler is to trace it.
        name: of the op; made from ``fn``'s by default.

    Raises:
        ConfigError: an annotation is missing or of a type that no op can take, ``mutates`` names no parameter, or
            ``name`` is none.

    Source: torch.library, https://docs.pytorch.org/docs/stable/library.html
    """

    def wrap(fn: F) -> F:
        label = _label(fn, name)
        try:
            schema = torch.library.infer_schema(fn, mutates_args=mutates)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{fn.__qualname__} cannot be an opaque op: {str(error).splitlines()[0]}",
                fix="annotate every parameter and the result with torch.Tensor, int, float, bool or str, and let "
                "mutates name tensor parameters",
            ) from error
        # Not `torch.library.custom_op`: its first call imports Dynamo, seconds of each start that compiles nothing.
        _LIBRARY.define(label + schema, tags=(torch.Tag.pt2_compliant_tag,))
        op = getattr(getattr(torch.ops, NAMESPACE), label).default
        _LIBRARY.impl(label, _checked(fn, op), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{label}", fake or _default_fake(op), lib=_LIBRARY)
        return op  # type: ignore[no-any-return]  # it is called like fn

    return wrap if fn is None else wrap(fn)


def _label(fn: Any, name: str | None) -> str:
    """The op's name; one that is taken gets a number, so that a module may be loaded again.

    Raises:
        ConfigError: ``fn`` is no function, or ``name`` no name that an op can have.
    """
    if not isinstance(fn, types.FunctionType):
        raise ConfigError(f"{fn!r} cannot be an opaque op", fix="pass a function that launches the kernel")
    if name is not None and not (isinstance(name, str) and re.fullmatch("[a-zA-Z][a-zA-Z0-9_]*", name)):
        raise ConfigError(f"{name!r} is no name for an op", fix="use letters, digits and _, a letter first")
    if name is not None and not iskeyword(name) and name not in _names:
        _names.add(name)
        return name
    return f"{name or re.sub(r'[^0-9a-zA-Z_]', '_', fn.__qualname__)}_{next(_serial)}"


def _checked(fn: Callable[..., Any], op: torch._ops.OpOverload) -> Callable[..., Any]:
    """``fn`` as a kernel: what it writes is counted in the tensors' versions, and what it returns must be its own."""
    arguments = op._schema.arguments
    written = [n for n, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]

    def run(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        for index in written:
            value = args[index] if index < len(args) else kwargs.get(arguments[index].name)  # a default is left out
            for tensor in tensors(value):
                if not tensor.is_inference():
                    torch.autograd.graph.increment_version(tensor)
        if result is not None:
            taken = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))} - {0}
            if any(tensor.untyped_storage().data_ptr() in taken for tensor in tensors(result)):
                raise ConfigError(f"{op} returns memory of an argument", fix="return fresh tensors")
        return result

    return run


def _default_fake(op: torch._ops.OpOverload) -> Callable[..., Any]:
    if not op._schema.returns:
        return lambda *args, **kwargs: None

    def fake(*args: Any, **kwargs: Any) -> Any:
        raise UntraceableError(f"{op} has no fake: nobody knows what it returns", fix="give opaque_op a fake=")

    return fake
