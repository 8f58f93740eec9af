"""The step that this thread's forward pass is in: metadata, caches and backend.

Model code has no such arguments, because a captured graph outlives every step: attention looks the current
step up when it runs. `engine.execution` installs it around each forward.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ostinato.engine.attention.backend import AttentionBackend
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.kvcache import LayerCache
from ostinato.errors import RuntimeStateError

__all__ = ["ForwardContext", "get_forward_context", "install_forward_context", "set_forward_context"]


@dataclass(frozen=True, eq=False)
class ForwardContext:
    """Everything attention needs that is not an activation."""

    metadata: AttentionMetadata
    caches: Sequence[LayerCache]
    """One cache a layer."""
    backend: AttentionBackend


_state = threading.local()  # without a default on a class: Dynamo of torch 2.11 would read that one


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Make ``context`` this thread's current one; the previous one comes back at exit."""
    previous, _state.context = getattr(_state, "context", None), context
    try:
        yield
    finally:
        _state.context = previous


def install_forward_context(context: ForwardContext | None) -> None:
    """Make ``context`` this thread's current one until another is set; None: there is none."""
    _state.context = context


def get_forward_context() -> ForwardContext:
    """This thread's current context.

    Raises:
        RuntimeStateError: there is none.
    """
    context: ForwardContext | None = getattr(_state, "context", None)
    if context is None:
        raise RuntimeStateError(
            "attention ran outside a forward context", fix="wrap the forward call in set_forward_context(...)"
        )
    return context
