"""`Executor`: launches a scheduled batch, up to the tokens that it chooses.

Owns the KV caches, the tokens that were sampled last (on the device, where the next step finds them), the counts of
tokens that penalties look up, and the one `Graphed` around the model. A full graph holds the output projection and the
choice of tokens too; in eager and piecewise steps only the rows that are sampled from reach them, never every prompt
position. Logits processors run on the host, between the two: their steps take no full graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostinato.engine.attention import (
    AttentionMetadata,
    AttentionShape,
    ForwardContext,
    PlanningAttentionBackend,
    get_attention_backend,
    install_forward_context,
    set_forward_context,
)
from ostinato.engine.before_torch import finish_head_start
from ostinato.engine.execution.batch_slots import batch_slots
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.execution.graph_settings import graph_settings
from ostinato.engine.execution.kept_reads import KeptReads
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.shadow import EngineShadow
from ostinato.engine.execution.step_context import graph_metadata, live_metadata, made_up_metadata
from ostinato.engine.execution.veto import why_no_full_graph
from ostinato.engine.kernels.pinned_copy import KernelCopy, copies_by_kernel
from ostinato.engine.kvcache import LayerCache
from ostinato.engine.layers import FusedLinears, SamplingHead, feed_ids
from ostinato.engine.layers.linear_table import LinearTable, load_table, table_key
from ostinato.engine.layers.linear_tuning import tune_linears
from ostinato.engine.models import DecoderModel
from ostinato.engine.models.linear_shapes import linear_shapes
from ostinato.engine.sampling import allocate_counts, apply_processors, build_rows
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.engine.weights.cache import cache_root
from ostinato.errors import EngineError, OutOfMemoryError
from ostinato.runtime import (
    Decision,
    Graphed,
    GraphKey,
    HostSlots,
    Ledger,
    LiveBatch,
    RuntimeMode,
    Veto,
)
from ostinato.telemetry import Sink

__all__ = ["Executor", "StepLimits", "StepOutput"]


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """What batches may be: the resolved settings that concern a step, in tokens and requests."""

    page_size: int
    max_model_len: int
    max_num_reqs: int
    max_num_batched_tokens: int
    vocab_size: int


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a launched step gives, on the device."""

    logits: Tensor
    """[num_sampling, vocab_size] in the model's dtype. It may lie in a graph's output: use it before the next step."""
    token_ids: Tensor
    """[num_sampling] int64, the chosen tokens, -1 where a row is not finite. What stands here when the next step is
    launched is what it is fed."""
    errors: Mapping[str, EngineError] = field(default_factory=dict)
    """Request id -> why it has no token, where that is known already."""
    labels: tuple[str, str, str] | None = None
    """(runtime mode, bucket, reason) of the step."""


class Executor:
    """One model, its caches and its graphs. Used by one thread; close it to give the memory back.

    Args:
        loaded: from `load_model`. Its weights may be on their way until a capture, or the first step; they are
            waited for here where linear kernels are measured.
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
        self.limits = StepLimits(
            page_size=config.page_size,
            max_model_len=config.max_model_len,
            max_num_reqs=config.max_num_reqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            vocab_size=model.vocab_size,
        )
        attention = self._attention = get_attention_backend(config.attention, loaded.device.type)
        self._planner = attention if isinstance(attention, PlanningAttentionBackend) else None
        self._planned: tuple[ScheduledBatch, Tensor, int | None] | None = None  # last of all
        self._model.bind_attention(fuses_rotary=self._attention.fuses_rotary)
        self._model.bind_linears(FusedLinears(_linear_table(loaded)))
        self._shape = AttentionShape(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            page_size=config.page_size,
            dtype=loaded.dtype,
            device=loaded.device,
            has_qk_norm=model.traits.has_qk_norm,
            max_num_reqs=config.max_num_reqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
        )
        if self._planner is not None:
            self._planner.reserve(self._shape)
        try:
            self._token_counts = allocate_counts(config.max_num_reqs, model.vocab_size, loaded.device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU raises no other
            fix = f"lower max_num_reqs: each request takes {2 * model.vocab_size:,} bytes"
            raise OutOfMemoryError("the token counts that penalties look up do not fit", fix=fix) from error
        self._logits: Tensor | None = None  # of full graphs
        if config.mode != "none":
            with torch.inference_mode(False):
                shape = (config.max_num_reqs, model.vocab_size)
                self._logits = torch.empty(shape, dtype=loaded.dtype, device=loaded.device)
        self._kv = KvPool(config, model, dtype=loaded.dtype, device=loaded.device)
        settings = graph_settings(config, loaded.device.type, model, num_pages=self._kv.max_pages - 1)
        self._kv_tiers = settings.kv_tiers
        self._sampling_head = SamplingHead(max_rows=config.max_num_reqs, device=loaded.device)
        with torch.inference_mode(False):
            self._last_ids = torch.zeros(config.max_num_reqs + 1, dtype=torch.int64, device=loaded.device)
        self._chosen: dict[int, Tensor] = {}  # the first of them, by their number: a slice costs a step some us
        self._seed = config.seed
        self._writer = self._new_writer()
        self.graphed = Graphed(
            self.forward,
            slots=batch_slots(
                vocab_size=model.vocab_size,
                max_model_len=config.max_model_len,
                max_num_reqs=config.max_num_reqs,
                num_pages=self._kv.max_pages,
                page_size=config.page_size,
            ),
            config=settings,
            device=loaded.device,
            capture_support=self._attention.capture_support,
            state=self._model,
            prepare=self._prepare,
            shadow=EngineShadow(self),
            sinks=sinks,
        )
        self._staging = self.graphed.staging(bind_copy=_copy_by_kernel if copies_by_kernel(self._device) else None)
        self._in_full_graph = False  # while one is warmed up, captured or qualified
        self._rows_are_requests = False  # in such a graph
        self._has_shadow = config.shadow_every > 0
        self._kept_reads: KeptReads | None = None  # of the step that waits for its shadow
        finish_head_start()  # its last ops on the device make way for steps and captures

    def warm_up_kernels(self) -> None:
        """Compile what steps launch, and run it once: kernels of attention, and of choosing tokens. Undone by
        `leave_step`."""
        self._attention.warm_up(self._shape)
        self._sampling_head.warm_up(self._token_counts, self._shape.dtype, torch.float32)  # of processors

    def memory(self) -> Ledger:
        """Bytes by owner, measured now, without the executables of graphs (`Captures.memory`)."""
        ledger = Ledger()
        storages = [t.untyped_storage() for t in (*self._model.parameters(), *self._model.buffers())]
        ledger.enter("weights", sum({s.data_ptr(): s.nbytes() for s in storages}.values()))
        ledger.enter("KV cache", self._kv.num_bytes)
        ledger.enter("logits", 0 if self._logits is None else self._logits.nbytes)
        ledger.enter("sampling state", self._token_counts.nbytes + self._last_ids.nbytes)
        ledger.enter("attention workspaces", self._attention.workspace_bytes)
        for owner, num_bytes in self.graphed.memory().owners.items():
            ledger.enter(owner, num_bytes)
        return ledger

    def execute(self, batch: ScheduledBatch) -> StepOutput:
        """Launch one step; waits for nothing on the device.

        Steps are launched in the order in which they were scheduled. A request with a pending token was in the
        step before and sampled there.
        """
        return self.launch(batch, self.graphed.decide(self._live_batch(batch)))

    def finish_shadow(self) -> None:
        """Run the step that a shadow has kept eagerly, if there is one, and compare; no step may be in flight.

        An eager run that fails is logged; see `Graphed.finish_shadow`.
        """
        try:
            with torch.inference_mode():
                self.graphed.finish_shadow()
        finally:
            self._kept_reads = None

    def launch(self, batch: ScheduledBatch, decision: Decision) -> StepOutput:
        """Launch one step by ``decision``, whose batch is ``batch``; see `execute`."""
        sizes = self.graphed.sizes(decision)
        host = self._staging.open(sizes)
        to_build = self._writer.write(host, batch)
        if self._has_shadow:
            self._drop_overtaken_shadow(host.arrays["slot_mapping"][: batch.num_tokens])
        self._staging.upload(sizes)
        slots = self.graphed.buffers.views(sizes)
        is_full = decision.runtime_mode is RuntimeMode.FULL
        graph_num_reqs = slots["seq_lens"].shape[0] if is_full else None
        self.plan_attention(batch, host["block_tables"], graph_num_reqs=graph_num_reqs)
        taken = [decision]  # another one where its graph reads what has moved
        num_sampling = len(batch.sampling)
        token_ids = self._chosen.get(num_sampling)
        if token_ids is None:
            token_ids = self._chosen[num_sampling] = self._last_ids[1 : 1 + num_sampling]
        with torch.inference_mode():
            if to_build:
                build_rows(self._token_counts, to_build, self._last_ids)
            if is_full:  # the graph has its metadata in the buffers
                logits: Tensor = self.graphed.run(decision, on_other=taken.append)[:num_sampling]
                self._remember_reads(host, batch)
                return StepOutput(logits, token_ids, labels=taken[-1].labels)
            context = self._with(live_metadata(batch, slots, page_size=self._page_size))
            with set_forward_context(context):
                hidden: Tensor = self.graphed.run(decision, on_other=taken.append)
            self._remember_reads(host, batch)
            logits = self._model.compute_logits(hidden[slots["sampled_rows"][:num_sampling]])
        if not num_sampling:
            return StepOutput(logits, token_ids, labels=taken[-1].labels)
        scores, errors = apply_processors(logits, batch.sampling)
        settings, count_rows = slots["settings"][:num_sampling], slots["count_rows"][:num_sampling]
        with torch.inference_mode():
            self._sampling_head(scores, settings, count_rows, self._token_counts, token_ids)
        return StepOutput(logits, token_ids, errors, taken[-1].labels)

    def forward(
        self,
        input_ids: Tensor,
        feed_rows: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        query_start: Tensor,
        sampled_rows: Tensor,
        settings: Tensor,
        count_rows: Tensor,
    ) -> Tensor:
        """The wrapped callable. For a full graph: logits [num_reqs, vocab]; otherwise hidden [num_tokens, hidden].

        Attention finds the other slots in the forward context, which `execute` and `_prepare` install.
        """
        hidden: Tensor = self._model(feed_ids(input_ids, feed_rows, self._last_ids), positions)
        if not self._in_full_graph:
            return hidden
        if not self._rows_are_requests:
            hidden = hidden[sampled_rows]
        # All full graphs write into one tensor: else each batch size would hold logits of its own, a GiB in all. Steps
        # read it before the next one. A compiler gets a result of its own, which it can fuse.
        is_shared = self._logits is not None and not torch.compiler.is_compiling()
        logits = self._model.compute_logits(hidden, self._logits[: hidden.shape[0]] if is_shared else None)  # type: ignore[index]
        chosen = self._last_ids[1 : 1 + logits.shape[0]]
        self._sampling_head(logits, settings, count_rows, self._token_counts, chosen)
        return logits

    def forget_requests(self) -> None:
        """Remember nothing of the batches that were launched so far; none of their requests comes back."""
        self._writer = self._new_writer()

    @property
    def model(self) -> DecoderModel:
        """The model, whose parameters graphs read where they lie."""
        return self._model

    @property
    def kv_pool(self) -> KvPool:
        """The memory of the KV cache."""
        return self._kv

    @property
    def caches(self) -> Sequence[LayerCache]:
        """The KV cache of each layer."""
        return self._kv.pages()

    @property
    def num_pages(self) -> int:
        """Pages of the KV cache, the null page included."""
        return self._kv.num_pages

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self._kv.num_tokens

    @property
    def last_ids(self) -> Tensor:
        """[max_num_reqs + 1] int64: the tokens that were sampled last, from row 1 on."""
        return self._last_ids

    @property
    def token_counts(self) -> Tensor:
        """[max_num_reqs + 1, vocab_size] int16: what penalties look up, a row a request that has any."""
        return self._token_counts

    def enter_step(self, key: GraphKey, metadata: AttentionMetadata) -> None:
        """Make this thread's `forward` what the graph of ``key`` holds, on ``metadata``, until `leave_step`."""
        self._in_full_graph = key.runtime_mode is RuntimeMode.FULL
        self._rows_are_requests = key.uniform_query_len == 1
        install_forward_context(self._with(metadata))

    def leave_step(self) -> None:
        """Undo `enter_step`."""
        self._in_full_graph = False
        install_forward_context(None)

    def plan_attention(self, batch: ScheduledBatch, block_tables: Tensor, *, graph_num_reqs: int | None) -> None:
        """Let an attention backend that plans prepare the step of ``batch``; see `PlanningAttentionBackend`."""
        if self._planner is not None:
            if self._has_shadow:
                self._planned = (batch, block_tables, graph_num_reqs)
            self._planner.plan_step(
                query_lens=batch.query_lens,
                seq_lens=batch.ends,
                block_tables=block_tables,
                graph_num_reqs=graph_num_reqs,
            )

    def planning_again(self) -> Callable[[], None]:
        """What lets attention prepare the step that it prepared last, also once it has prepared others."""
        if self._planner is None or self._planned is None:
            return _nothing
        batch, block_tables, graph_num_reqs = self._planned
        return partial(
            self._planner.plan_step,
            query_lens=tuple(batch.query_lens),  # the batch's requests go on
            seq_lens=tuple(batch.ends),
            block_tables=block_tables.clone(),
            graph_num_reqs=graph_num_reqs,
        )

    def run_made_up(self, key: GraphKey) -> None:
        """Run the made-up step of ``key`` eagerly, up to the choice of a token. Nothing decides or counts it."""
        try:
            args, kwargs = self.graphed.made_up_call(key)
            hidden = self.forward(*args, **kwargs)
            slots = self.graphed.buffers.views(self.graphed.key_sizes(key))
            logits = self._model.compute_logits(hidden[slots["sampled_rows"][:1]])
            settings, count_rows = slots["settings"][:1], slots["count_rows"][:1]
            self._sampling_head(logits, settings, count_rows, self._token_counts, self._last_ids[1:2])
        finally:
            self.leave_step()

    def close(self) -> None:
        """Give back graphs, then caches, and let go of the model. Idempotent."""
        self.graphed.close()
        self._logits = None
        self._kv = None  # type: ignore[assignment]
        self._model = self._token_counts = None  # type: ignore[assignment]  # `execute` is refused before their use

    def _prepare(self, key: GraphKey) -> None:
        """Fresh metadata before each warm-up run and capture of ``key``."""
        is_full = key.runtime_mode is RuntimeMode.FULL
        if is_full:
            slots = self.graphed.buffers.views(self.graphed.key_sizes(key))
            metadata = graph_metadata(key, slots, page_size=self._page_size)
        else:
            metadata = made_up_metadata(
                key.num_tokens, max_model_len=self._max_model_len, page_size=self._page_size, device=self._device
            )
        if self._planner is not None:
            self._planner.plan_step(
                query_lens=metadata.host_query_lens or (),
                seq_lens=metadata.host_seq_lens or (),
                block_tables=torch.zeros(metadata.block_tables.shape, dtype=torch.int32),  # all in the null page
                graph_num_reqs=metadata.num_reqs if is_full else None,
            )
        self.enter_step(key, metadata)

    def _drop_overtaken_shadow(self, slots: NDArray[np.int64]) -> None:
        """The next step writes ``slots``, on the host: a step that read one of them cannot be run again."""
        if self.graphed.shadow_key is None:
            self._kept_reads = None
        elif self._kept_reads is None or self._kept_reads.overlap(slots):
            self.graphed.drop_shadow()
            self._kept_reads = None

    def _remember_reads(self, host: HostSlots, batch: ScheduledBatch) -> None:
        """If a shadow has kept the step that was just launched: what it read."""
        if self._has_shadow and self._kept_reads is None and self.graphed.shadow_key is not None:
            self._kept_reads = KeptReads(
                host.arrays["block_tables"][: batch.num_reqs],
                host.arrays["seq_lens"][: batch.num_reqs],
                num_pages=self.num_pages,
                page_size=self._page_size,
            )

    def _new_writer(self) -> BatchWriter:
        limits = self.limits
        return BatchWriter(
            max_num_reqs=limits.max_num_reqs,
            max_model_len=limits.max_model_len,
            page_size=limits.page_size,
            seed=self._seed,
        )

    def _with(self, metadata: AttentionMetadata) -> ForwardContext:
        return ForwardContext(metadata=metadata, caches=self._kv.reserved, backend=self._attention)

    def _live_batch(self, batch: ScheduledBatch) -> LiveBatch:
        context = None
        if self._kv_tiers is not None:
            longest = batch.longest
            context = next((tier for tier in self._kv_tiers if tier >= longest), longest)
        veto_reason = why_no_full_graph(batch, draws_in_graphs=self._sampling_head.draws_in_graphs)
        return LiveBatch(
            num_tokens=batch.num_tokens,
            num_reqs=batch.num_reqs,
            uniform_query_len=batch.uniform_query_len,
            context_tokens=context,
            veto=Veto.FULL if veto_reason else None,
            veto_reason=veto_reason,
        )


def _nothing() -> None:
    """For attention that plans nothing."""


def _copy_by_kernel(target: Tensor, source: Tensor) -> Callable[[], None]:
    return KernelCopy(source, target.device).into(target)


def _linear_table(loaded: LoadedModel) -> LinearTable:
    """Which kernels linear layers of up to 128 rows take: what was measured on this machine, or is measured now."""
    if not loaded.config.tune_linears:
        return load_table(cache_root(), table_key(loaded.device, use_pdl=True))
    loaded.await_weights()  # whose copies would disturb what is measured
    shapes = linear_shapes(loaded.model.config, dtype=loaded.config.dtype)
    return tune_linears(shapes, device=loaded.device, root=cache_root())
