"""`opaque_op`: a kernel that no tracer can enter, as one op that stays inside a segment.

Triton launched by hand, a ctypes call, a kernel that compiles on its first call: Dynamo cannot trace them, and
simulated graphs cannot see them. Wrapped, each is one op with declared results and mutations, in every
partition and on every device. Unlike a break it must obey the rules of capture itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from ostinato.errors import ConfigError

__all__ = ["opaque_op"]

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
    """Wrap ``fn`` as a custom op. Its parameters and result need annotations (tensors, numbers, strings).

    Args:
        fn: launches the kernel on the current stream. Results must be fresh tensors, no views of arguments.
        mutates: names of tensor parameters that it writes in place.
        fake: takes the same arguments and returns empty tensors of the results' shapes and dtypes. Needed if
            ``fn`` returns tensors and a compiler is to trace it.
        name: of the op; made from ``fn``'s by default.

    Raises:
        ConfigError: an annotation is missing or of a type that no op can take, or ``mutates`` names no parameter.

    Source: torch.library.custom_op, https://docs.pytorch.org/docs/stable/library.html
    """

    def wrap(fn: F) -> F:
        label = name or f"{re.sub(r'[^0-9a-zA-Z_]', '_', fn.__qualname__)}_{next(_serial)}"
        try:
            op = torch.library.custom_op(f"ostinato_ops::{label}", fn, mutates_args=mutates)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{fn.__qualname__} cannot be an opaque op: {str(error).splitlines()[0]}",
                fix="annotate every parameter and the result with torch.Tensor, int, float, bool or str, and let "
                "mutates name tensor parameters",
            ) from error
        if fake is not None:
            op.register_fake(fake)
        return op  # type: ignore[return-value]  # it is called like fn

    return wrap if fn is None else wrap(fn)
