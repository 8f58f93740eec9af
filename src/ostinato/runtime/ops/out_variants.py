"""Find the ``out=`` overload of a functional op, so that a replay can write where the capture wrote.

Used by the simulated backend: without it every replayed op would allocate a result and copy it.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["find_out_variant"]


@functools.cache
def find_out_variant(func: Any) -> tuple[Any, str] | None:
    """The overload of ``func`` with the same inputs and exactly one out tensor, and that argument's name."""
    schema = func._schema
    if schema.is_mutable or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    for overload in func.overloadpacket.overloads():
        candidate = getattr(func.overloadpacket, overload)
        outs = [a.name for a in candidate._schema.arguments if a.is_out]
        # `out` overloads drop the factory arguments (dtype, layout, device, pin_memory): the tensor fixes them.
        inputs = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        if len(outs) == 1 and inputs == wanted:
            return candidate, outs[0]
    return None
