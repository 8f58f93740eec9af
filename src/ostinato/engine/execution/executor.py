"""`Executor`: runs a scheduled batch and gives the logits that are sampled from.

Owns the KV caches and the one `Graphed` around the model. A full graph holds the output projection too; in
eager and piecewise steps only the rows that are sampled from reach it, never every prompt position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ostinato.engine.attention import (
    AttentionMetadata,
    AttentionShape,
    ForwardContext,
    get_attention_backend,
    install_forward_context,
    set_forward_context,
)
from ostinato.engine.execution.batch_slots import batch_slots, fill_batch
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.memory_budget import choose_kv_tokens
from ostinato.engine.execution.sizes import decode_sizes_for, kv_tiers_for, token_sizes_for
from ostinato.engine.execution.step_context import graph_metadata, live_metadata, made_up_metadata
from ostinato.engine.kvcache import allocate_caches, pages_for_tokens
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.errors import OutOfMemoryError
from ostinato.runtime import GraphConfig, Graphed, GraphKey, LiveBatch, RuntimeMode
from ostinato.telemetry import Sink

__all__ = ["Executor"]


class Executor:
    """One model, its caches and its graphs. Used by one thread; close it to give the memory back.

    Args:
        loaded: from `load_model`.
        sinks: receivers of telemetry events.

    Raises:
        OutOfMemoryError: the caches do not fit.
    """

    def __init__(self, loaded: LoadedModel, *, sinks: Sequence[Sink] = ()) -> None:
        config, model = loaded.config, loaded.model.config
        assert config.max_num_reqs and config.max_num_batched_tokens and config.max_model_len, "resolved"
        self._model = loaded.model
        self._device = loaded.device
        self._page_size = config.page_size
        self._max_model_len = config.max_model_len
        self._kv_tiers = kv_tiers_for(config.attention, config.max_model_len)
        self._attention = get_attention_backend(config.attention, loaded.device.type)
        self._model.bind_attention(fuses_rotary=self._attention.fuses_rotary)
        self._shape = AttentionShape(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            page_size=config.page_size,
            dtype=loaded.dtype,
            device=loaded.device,
            has_qk_norm=model.traits.has_qk_norm,
        )
        self.kv_tokens = choose_kv_tokens(config, model, element_bytes=loaded.dtype.itemsize, device=loaded.device)
        self.num_pages = pages_for_tokens(num_tokens=self.kv_tokens, page_size=config.page_size)
        try:
            self._caches = allocate_caches(
                num_layers=model.num_layers,
                num_pages=self.num_pages,
                page_size=config.page_size,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                dtype=loaded.dtype,
                device=loaded.device,
            )
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError("the KV cache does not fit", fix="lower kv_tokens or max_model_len") from error
        self.graphed = Graphed(
            self.forward,
            slots=batch_slots(
                vocab_size=model.vocab_size,
                max_model_len=config.max_model_len,
                num_pages=self.num_pages,
                page_size=config.page_size,
            ),
            config=GraphConfig(
                mode=config.mode,
                partition=config.partition,
                compile=config.compile,
                compile_max_tokens=config.compile_max_tokens,
                sizes=config.token_sizes or token_sizes_for(loaded.device.type, config.max_num_batched_tokens),
                decode_sizes=config.decode_sizes or decode_sizes_for(loaded.device.type, config.max_num_reqs),
                max_size=config.max_num_batched_tokens,
                max_num_reqs=config.max_num_reqs,
                kv_tiers=self._kv_tiers,
                outputs="view",
                warm_up_runs=1 if loaded.device.type == "cpu" else 2,
            ),
            device=loaded.device,
            capture_support=self._attention.capture_support,
            prepare=self._prepare,
            sinks=sinks,
        )
        self._staging = self.graphed.staging()
        self._in_full_graph = False  # while one is warmed up or captured
        self.capture_seconds = 0.0

    def prepare(self, *, on_key: Callable[[GraphKey], None] | None = None) -> None:
        """Compile, warm up and capture everything that serving needs.

        Args:
            on_key: told of each key once it is warm and once it is captured.
        """
        try:
            with torch.inference_mode():
                self._attention.warm_up(self._shape)
                self.graphed.warm_up(on_key=on_key)
                if self.graphed.keys:
                    self.capture_seconds = self.graphed.capture(on_key=on_key).seconds
        finally:
            self._in_full_graph = False
            install_forward_context(None)

    def execute(self, batch: ScheduledBatch) -> Tensor:
        """Run one step.

        Returns:
            [num_sampling, vocab_size] logits of the items with ``samples``, in order, in the model's dtype.
            They may lie in a graph's output: read them before the next step.
        """
        decision = self.graphed.decide(self._live_batch(batch))
        sizes = self.graphed.sizes(decision)
        fill_batch(self._staging.open(sizes), batch, page_size=self._page_size)
        self._staging.upload(sizes)
        all_sample = all(item.samples for item in batch.items)
        if decision.runtime_mode is RuntimeMode.FULL:  # the graph has its metadata in the buffers
            with torch.inference_mode():
                logits: Tensor = self.graphed.run(decision)[: batch.num_reqs]  # a mixed graph fills all request slots
                return logits if all_sample else logits[_sampling(batch)]
        slots = self.graphed.buffers.views(sizes)
        context = self._with(live_metadata(batch, slots, page_size=self._page_size))
        with torch.inference_mode(), set_forward_context(context):
            hidden: Tensor = self.graphed.run(decision)
            rows = slots["sampled_rows"][: batch.num_reqs]
            return self._model.compute_logits(hidden[rows if all_sample else rows[_sampling(batch)]])

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        query_start: Tensor,
        sampled_rows: Tensor,
    ) -> Tensor:
        """The wrapped callable. For a full graph: logits [num_reqs, vocab]; otherwise hidden [num_tokens, hidden].

        Attention finds the other slots in the forward context, which `execute` and `_prepare` install.
        """
        hidden: Tensor = self._model(input_ids, positions)
        return self._model.compute_logits(hidden[sampled_rows]) if self._in_full_graph else hidden

    def close(self) -> None:
        """Give back graphs, then caches, and let go of the model. Idempotent."""
        self.graphed.close()
        self._caches = []
        self._model = None  # type: ignore[assignment]  # `execute` is refused before it would be used

    def _prepare(self, key: GraphKey) -> None:
        """Fresh metadata before each warm-up run and capture of ``key``."""
        self._in_full_graph = key.runtime_mode is RuntimeMode.FULL
        if self._in_full_graph:
            slots = self.graphed.buffers.views(self.graphed.key_sizes(key))
            metadata = graph_metadata(key, slots, page_size=self._page_size)
        else:
            metadata = made_up_metadata(
                key.num_tokens, max_model_len=self._max_model_len, page_size=self._page_size, device=self._device
            )
        install_forward_context(self._with(metadata))

    def _with(self, metadata: AttentionMetadata) -> ForwardContext:
        return ForwardContext(metadata=metadata, caches=self._caches, backend=self._attention)

    def _live_batch(self, batch: ScheduledBatch) -> LiveBatch:
        context = None
        if self._kv_tiers is not None:
            longest = max(item.end for item in batch.items)
            context = next((tier for tier in self._kv_tiers if tier >= longest), longest)
        return LiveBatch(
            num_tokens=batch.num_tokens,
            num_reqs=batch.num_reqs,
            uniform_query_len=batch.uniform_query_len,
            context_tokens=context,
        )


def _sampling(batch: ScheduledBatch) -> list[int]:
    return [index for index, item in enumerate(batch.items) if item.samples]
