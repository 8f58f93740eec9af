"""The engine's KV cache: its addresses before graphs are captured over them, its size from what is left afterwards.

So nothing is guessed about the memory of graphs, and nothing is captured twice. Where a device cannot put memory
behind addresses later, all of it is there from the beginning. An idle engine may give the memory back and take it
again. Owned by the executor.
"""

from __future__ import annotations

import math

import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.memory_budget import (
    SHARE_AFTER_CAPTURE,
    SHARE_BEFORE_CAPTURE,
    SHARE_IF_ASKED,
    asked_kv_tokens,
    kv_budget_bytes,
    most_kv_tokens,
)
from ostinato.engine.kvcache import LayerCache, bytes_per_token, caches_over, pages_for_tokens
from ostinato.engine.models import ModelConfig
from ostinato.errors import OutOfMemoryError
from ostinato.runtime import ReservedRegions

__all__ = ["KvPool"]


class KvPool:
    """Keys and values of all layers.

    Args:
        config: resolved.
        model: whose cache it is.
        dtype: of the cache.
        device: where it lies.

    Raises:
        OutOfMemoryError: what was asked for, or one request of ``max_model_len``, does not fit.
    """

    def __init__(self, config: EngineConfig, model: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._device = config, device
        self._page = (config.page_size, model.num_kv_heads, model.head_dim)
        self._page_bytes = math.prod(self._page) * dtype.itemsize  # of a layer's keys, or of its values
        self._token_bytes = bytes_per_token(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            element_bytes=dtype.itemsize,
        )
        is_lazy = ReservedRegions.can_be_lazy(device)
        # Addresses are cheap: reserve what there could be at most, and settle after capture.
        tokens = self._tokens_in(kv_budget_bytes(device, 1.0 if is_lazy else SHARE_BEFORE_CAPTURE[device.type]))
        self.max_pages = pages_for_tokens(num_tokens=tokens, page_size=config.page_size)
        """Pages that have addresses; graphs may be captured over all of them."""
        try:
            self._regions = ReservedRegions(
                num_regions=2 * model.num_layers, region_bytes=self.max_pages * self._page_bytes, device=device
            )
            if not is_lazy:
                self._regions.back(self.max_pages * self._page_bytes)
        except (OutOfMemoryError, torch.OutOfMemoryError) as error:
            raise OutOfMemoryError("the KV cache does not fit", fix="lower kv_tokens or max_model_len") from error
        self.reserved = caches_over(self._regions.memory, num_pages=self.max_pages, page=self._page, dtype=dtype)
        """Over all addresses, of which only the first `num_pages` may be touched; what graphs and steps are given."""
        self.num_pages = min(self.max_pages, self._regions.backed_bytes // self._page_bytes)
        """Pages that are memory, the null page included."""

    @property
    def num_tokens(self) -> int:
        """Tokens that requests can have in it."""
        return (self.num_pages - 1) * self._config.page_size

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it holds."""
        return self._regions.num_regions * self._regions.backed_bytes

    def pages(self) -> list[LayerCache]:
        """The pages that are memory, of each layer."""
        return [cache.first(self.num_pages) for cache in self.reserved]

    def settle(self, *, share: float | None = None, less_bytes: int = 0) -> None:
        """Take what is left, less a reserve, now that everything else is there; or what was asked for, if it is left.
        Called once, after capture.

        Args:
            share: of what is left; None takes nearly all, since the graphs are there.
            less_bytes: left for graphs to come, besides.

        Raises:
            OutOfMemoryError: what was asked for, or one request of ``max_model_len``, does not fit beside the graphs.
        """
        if not self._regions.is_lazy:
            return
        regions, granule = self._regions, self._regions.granule_bytes
        if share is None:
            is_asked = self._config.kv_tokens is not None
            share = (SHARE_IF_ASKED if is_asked else SHARE_AFTER_CAPTURE)[self._device.type]
        budget = self.num_bytes + kv_budget_bytes(self._device, share) - less_bytes
        region_bytes = budget // regions.num_regions // granule * granule  # a part of a granule would be wasted
        tokens = self._tokens_in(region_bytes * regions.num_regions)
        num_pages = min(self.max_pages, pages_for_tokens(num_tokens=tokens, page_size=self._config.page_size))
        try:
            regions.back(num_pages * self._page_bytes)
        except OutOfMemoryError as error:  # somebody else was faster
            raise OutOfMemoryError("the KV cache does not fit", fix="set kv_tokens, or free the device") from error
        self.num_pages = num_pages

    def give_back(self) -> int:
        """Give the memory of the pages back, where the device can take it; the bytes. Pages keep number and address.

        Until `take_back` nobody may touch any page but the null page, and afterwards their contents are lost.
        """
        return self._regions.give_back()

    def take_back(self) -> None:
        """Put memory behind all `num_pages` again.

        Raises:
            OutOfMemoryError: somebody else has it. Then nothing is changed.
        """
        if not self._regions.is_lazy:
            return
        try:
            self._regions.back(self.num_pages * self._page_bytes)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"the KV cache of {self.num_tokens} tokens does not fit any more", fix="free the device, and try again"
            ) from error

    def _tokens_in(self, budget_bytes: int) -> int:
        """What was asked for, or as many as can be used, if they fit."""
        choose = most_kv_tokens if self._config.kv_tokens is None else asked_kv_tokens
        return choose(self._config, budget_bytes=budget_bytes, token_bytes=self._token_bytes)
