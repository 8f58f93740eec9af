"""What a shadow run must know of an engine's step: the rows it writes, and the forward context it ran in.

Called by the runtime on one replayed step in ``shadow_every``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor

from ostinato.engine.attention import AttentionMetadata, get_forward_context
from ostinato.engine.execution.step_context import graph_metadata
from ostinato.engine.kvcache import LayerCache, by_slot, named_pages
from ostinato.runtime import Graphed, GraphKey, LiveBatch, RuntimeMode

__all__ = ["EngineShadow", "Steps"]


class Steps(Protocol):
    """What is needed of `Executor`."""

    graphed: Graphed

    @property
    def caches(self) -> Sequence[LayerCache]:
        """The KV cache of each layer."""
        ...

    @property
    def last_ids(self) -> Tensor:
        """[max_num_reqs + 1] int64, sampled tokens."""
        ...

    @property
    def token_counts(self) -> Tensor:
        """[max_num_reqs + 1, vocab_size] int16."""
        ...

    def enter_step(self, key: GraphKey, metadata: AttentionMetadata) -> None:
        """Make this thread's forward that of ``key``."""
        ...

    def leave_step(self) -> None:
        """Undo it."""
        ...

    def planning_again(self) -> Callable[[], None]:
        """What lets attention prepare the step that it prepared last, also once it has prepared others."""
        ...


class EngineShadow:
    """`ShadowOwner` of an executor."""

    def __init__(self, executor: Steps) -> None:
        self._executor = executor

    def written(self, key: GraphKey, live: LiveBatch) -> Mapping[str, tuple[Tensor, Tensor | None]]:
        """The slots of the live tokens in every layer, the tokens that were sampled last, and the counts of them."""
        graphed = self._executor.graphed
        views = graphed.buffers.views(graphed.key_sizes(key))
        slots = views["slot_mapping"][: live.num_tokens].clone()
        rows: dict[str, tuple[Tensor, Tensor | None]] = {"sampled tokens": (self._executor.last_ids, None)}
        rows |= {name: (by_slot(pages), slots) for name, pages in named_pages(self._executor.caches)}
        if key.runtime_mode is RuntimeMode.FULL:  # elsewhere tokens are chosen behind the graph
            rows["token counts"] = (self._executor.token_counts, views["count_rows"][: live.num_reqs].clone())
        return rows

    def cut(self, key: GraphKey, live: LiveBatch, outputs: Any) -> Any:
        """Logits of the live requests of a full graph, hidden states of the live tokens of another."""
        return outputs[: live.num_reqs if key.runtime_mode is RuntimeMode.FULL else live.num_tokens]

    def resume(self, key: GraphKey) -> Callable[[], AbstractContextManager[None]]:
        """The metadata of the step that runs now; its tensors lie in the static buffers."""
        executor = self._executor
        if key.runtime_mode is RuntimeMode.FULL:
            slots = executor.graphed.buffers.views(executor.graphed.key_sizes(key))
            metadata = graph_metadata(key, slots, page_size=executor.caches[0].page_size)
        else:
            metadata = get_forward_context().metadata

        plan_again = executor.planning_again()

        @contextmanager
        def entered() -> Iterator[None]:
            plan_again()
            executor.enter_step(key, metadata)
            try:
                yield
            finally:
                executor.leave_step()

        return entered
