"""`WrappedCallable`: a callable, how its calls map to slots, and the static buffers on which its graphs read them.

Binds it at a key's padded sizes, and brings a live call's tensors into the buffers. Runs nothing by itself. Used by
live steps and by made-up ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ostinato.runtime.buffers import (
    NUM_REQS,
    NUM_TOKENS,
    CallLayout,
    Place,
    Sizes,
    StaticBuffers,
    live_sizes,
    places_in,
    places_of,
)
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.runners.runner import BoundCall

__all__ = ["WrappedCallable"]


class WrappedCallable:
    """Owns the static buffers.

    Args:
        fn: the callable.
        layout: of its calls.
        max_sizes: axis -> largest count.
        device: where it runs.
        state: what it reads besides its arguments, as far as its owner says; see `Graphed`.
    """

    def __init__(
        self, fn: Callable[..., Any], *, layout: CallLayout, max_sizes: Sizes, device: torch.device, state: Any = None
    ) -> None:
        self.fn = fn
        self.device = device
        self.buffers = StaticBuffers(layout.slots, max_sizes=max_sizes, device=device)
        self._layout = layout
        self._state = state

    def key_sizes(self, key: GraphKey) -> Sizes:
        """The padded sizes of ``key``, hence the layout of the buffers that its graph has baked in."""
        # A piecewise key takes any number of requests: its segments see slots for the most that it can hold.
        most = self.buffers.max_sizes[NUM_REQS]
        num_reqs = min(key.num_tokens, most) if key.num_reqs is None else key.num_reqs
        return {NUM_TOKENS: key.num_tokens, NUM_REQS: num_reqs}

    def arguments(self, sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)``: the buffers at ``sizes``, and the frozen values."""
        return self._layout.join(self.buffers.views(sizes))

    def bind(self, key: GraphKey) -> BoundCall:
        """The callable on the buffers at the padded sizes of ``key``."""
        return BoundCall(self.fn, *self.arguments(self.key_sizes(key)))

    def bind_to(self, values: Mapping[str, torch.Tensor]) -> BoundCall:
        """The callable on tensors by slot name."""
        return BoundCall(self.fn, *self._layout.join(values))

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of a live call by slot name, checked; raises what `CallLayout.split` does."""
        return self._layout.split(args, kwargs, self.device)

    def live_batch(self, found: Mapping[str, torch.Tensor]) -> LiveBatch:
        """The sizes of a live call."""
        num_reqs = self._layout.num_rows(found, NUM_REQS)
        num_tokens = self._layout.num_rows(found, NUM_TOKENS)
        return LiveBatch(num_tokens=num_tokens or num_reqs or 0, num_reqs=num_reqs)

    def load(self, found: Mapping[str, torch.Tensor], live: LiveBatch, padded: Sizes) -> None:
        """Write a live call's tensors into the buffers at ``padded``, and pad their tails."""
        self.buffers.write(found, padded)
        self.buffers.pad(live_sizes(live), padded)

    def own_places(self) -> list[Place]:
        """Places of the tensors that the callable reaches, as they lie now."""
        return places_of(self.fn)

    def state_places(self) -> list[Place]:
        """Places in the state that its owner named."""
        return places_in(self._state)

    def forget_state(self) -> None:
        """Let go of the state that its owner named."""
        self._state = None
