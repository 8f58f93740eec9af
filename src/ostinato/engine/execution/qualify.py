"""Qualification of an engine's own steps: legal batches for every key, over a cache whose other slots are poisoned.

Each batch has a random history; every slot that it neither reads nor writes holds NaN or large garbage, so that
whoever reads one shows it, and a write to one is found by its bytes. Slot 0 of the null page alone is spared: padded
rows write there. All batches live in the first pages of a large cache; the others are watched by a checksum. Called
by `LLM.qualify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.step_context import graph_metadata, live_metadata
from ostinato.engine.kvcache import by_slot, named_pages
from ostinato.engine.paging import pages_for, slots_for
from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.runtime import (
    Case,
    GraphKey,
    KeyReport,
    LiveBatch,
    Poison,
    QualificationReport,
    RuntimeMode,
    Writes,
    sizes_to_try,
)

__all__ = ["EngineCases", "qualify_steps"]

_MIXES: Final = ("short contexts", "long contexts")
_POISONS: Final = (Poison.NAN, Poison.LARGE)
_SPARE_PAGES: Final = 8  # of nobody, beside those of the batch
_MAX_WATCHED_BYTES: Final = 256 << 20  # of cache; each case copies it several times
_SAMPLED: Final = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(temperature=1.2, top_k=20, min_p=0.02, seed=2),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, seed=3),
)
"""Requests take these in turns. With seeds, since every run of a case must draw alike."""
_Parts = list[tuple[int, int]]  # (tokens computed before, new tokens) of each request


def qualify_steps(
    executor: Executor,
    *,
    keys: Sequence[GraphKey] | None = None,
    seed: int = 0,
    on_key: Callable[[KeyReport], None] | None = None,
) -> QualificationReport:
    """Compare every captured key of ``executor``, or ``keys`` alone, with eager; those that differ are quarantined.
    It must be idle.

    Raises: what `Graphed.qualify` does.
    """
    executor.finish_shadow()
    try:
        with torch.inference_mode():
            return executor.graphed.qualify(keys=keys, cases=EngineCases(executor, seed=seed), on_key=on_key)
    finally:
        executor.leave_step()


class EngineCases:
    """`QualificationCases` of an executor.

    Args:
        executor: captured and idle; its cache is written.
        seed: of tokens, histories and pages.
    """

    def __init__(self, executor: Executor, *, seed: int = 0) -> None:
        self._executor = executor
        self._graphed = executor.graphed
        self._staging = executor.graphed.staging()
        limits = executor.limits
        self._max_len, self._page_size = limits.max_model_len, limits.page_size
        self._vocab_size = limits.vocab_size
        self._seed = seed
        device = executor.graphed.device
        self._num_pages = executor.num_pages
        num_bytes = sum(2 * cache.key.numel() * cache.key.element_size() for cache in executor.caches)
        if num_bytes > _MAX_WATCHED_BYTES:
            most = 2 * pages_for(self._max_len, self._page_size) + 4 * limits.max_num_reqs + _SPARE_PAGES
            most += pages_for(limits.max_num_batched_tokens, self._page_size)
            self._num_pages = min(self._num_pages, 1 + most)
        self._null = torch.zeros(1, dtype=torch.int64, device=device)

    def state(self) -> Mapping[str, Tensor]:
        """See `QualificationCases.state`: the cache of each layer by slot, the tokens that were sampled last, and how
        often each was."""
        found = {name: by_slot(pages[: self._num_pages]) for name, pages in named_pages(self._executor.caches)}
        return found | {"sampled tokens": self._executor.last_ids, "token counts": self._executor.token_counts}

    def unwritten(self) -> Mapping[str, Tensor]:
        """See `WatchesMore.unwritten`: the pages of a large cache beyond those of `state`."""
        return {
            f"{name}, from page {self._num_pages} on": pages[self._num_pages :]
            for name, pages in named_pages(self._executor.caches)
            if self._num_pages < len(pages)
        }

    def of(self, key: GraphKey) -> Iterator[Case]:
        """See `QualificationCases.of`. From size to size the mixes exchange poison: two sizes have all four pairs."""
        max_reqs = self._graphed.key_sizes(key)["num_reqs"]
        sizes = sizes_to_try(key.num_reqs if key.uniform_query_len and key.num_reqs else key.num_tokens)
        for turn, size in enumerate(sizes):
            seen: list[_Parts] = []
            for mix, kind in enumerate(_MIXES):
                parts = self._decode(key, size, mix) if key.uniform_query_len else self._mixed(size, max_reqs, mix)
                if len(parts) <= max_reqs and self._fit(parts) and parts not in seen:
                    seen.append(parts)
                    yield self._case(key, parts, mix, _POISONS[(mix + turn) % 2], kind)

    def _decode(self, key: GraphKey, num_reqs: int, mix: int) -> _Parts:
        """Decodes at short contexts, or with one at the key's longest and the others at various lengths."""
        new = key.uniform_query_len or 1
        longest = min(key.kv_tier or self._max_len, self._max_len) - new
        if mix == 0:
            return [(min(1 + 3 * n % (2 * self._page_size), longest), new) for n in range(num_reqs)]
        return [(longest, new), *((max(longest - 17 * n, 0) // (n + 1), new) for n in range(1, num_reqs))]

    def _mixed(self, num_tokens: int, max_reqs: int, mix: int) -> _Parts:
        """Whole prompts; or decodes and a chunk in the middle of a long prompt."""
        if mix == 0 or num_tokens < 2:
            start = 0 if mix == 0 else self._max_len // 2
            return [(start, n) for n in _chunks(num_tokens, self._max_len - start)]
        num_decodes = min(max(num_tokens // 2, 1), max_reqs - 1, 3)
        while num_decodes and num_decodes + len(_chunks(num_tokens - num_decodes, self._max_len)) > max_reqs:
            num_decodes -= 1  # a large batch of short prompts takes all requests there can be
        rest = num_tokens - num_decodes
        start = max(min(self._max_len // 2, self._max_len - rest), 0)
        decodes = [(min(self._max_len // 4 + 7 * n, self._max_len - 1), 1) for n in range(num_decodes)]
        return [*decodes, *((start, n) for n in _chunks(rest, self._max_len - start))]

    def _fit(self, parts: _Parts) -> bool:
        """Shorten histories, the first request's last of all, until the pages suffice; False if they cannot."""
        budget = self._num_pages - 1
        while sum(pages_for(start + new, self._page_size) for start, new in parts) > budget:
            candidates = range(1, len(parts)) if any(start for start, _ in parts[1:]) else range(1)
            longest = max(candidates, key=lambda n: parts[n][0])
            start, new = parts[longest]
            if start == 0:
                return False
            parts[longest] = (start // 2, new)
        return True

    def _case(self, key: GraphKey, parts: _Parts, mix: int, poison: Poison, kind: str) -> Case:
        batch = self._batch(parts, is_decode=key.uniform_query_len is not None, mix=mix)
        writer = self._new_writer()  # of the case's own: each run finds its requests in the same rows
        sizes = self._graphed.key_sizes(key)
        is_full = key.runtime_mode is RuntimeMode.FULL
        num_reqs, num_tokens = batch.num_reqs, batch.num_tokens
        is_padded = num_tokens < key.num_tokens or num_reqs < sizes["num_reqs"]
        new, history = self._slots(batch)
        writes = {name: Writes(new, self._null) for name in self.state()}
        rows = torch.arange(1, 1 + (sizes["num_reqs"] if is_full else 0), device=new.device)
        writes["sampled tokens"] = Writes(rows[:num_reqs], rows[num_reqs:])
        host = self._staging.open(sizes)
        writer.write(host, batch)
        counted = host["count_rows"][host["count_rows"] > 0] if is_full else host["count_rows"][:0]
        writes["token counts"] = Writes(counted.to(new.device, copy=True), self._null)

        def fill() -> None:
            self._fill_state(history, poison, self._seed + mix)
            slots = self._write_inputs(writer, batch, sizes, is_full=is_full, feeds=mix == 1)
            metadata = (
                graph_metadata(key, slots, page_size=self._page_size)
                if is_full
                else live_metadata(batch, slots, page_size=self._page_size)
            )
            self._executor.enter_step(key, metadata)

        def alone() -> Any:
            views = self._graphed.buffers.views(sizes)
            live = {name: views[name][: self._rows(name, batch)].clone() for name in views}
            self._executor.plan_attention(batch, live["block_tables"].cpu(), graph_num_reqs=None)
            metadata = live_metadata(batch, live, page_size=self._page_size)
            self._executor.enter_step(key, metadata)
            return self._executor.forward(**live)

        def repad() -> None:
            random = torch.Generator().manual_seed(self._seed)
            for name, most in (("input_ids", self._vocab_size), ("positions", self._max_len)):
                tail = self._graphed.buffers.views(sizes)[name][num_tokens:]
                tail.copy_(torch.randint(most, tail.shape, generator=random))

        return Case(
            name=f"{num_tokens} of {key.num_tokens} rows, {num_reqs} requests, {kind}, padding {poison.value}",
            live=LiveBatch(num_tokens=num_tokens, num_reqs=num_reqs, uniform_query_len=batch.uniform_query_len),
            fill=fill,
            cut=lambda outputs: outputs[: num_reqs if is_full else num_tokens],
            exact=alone if is_padded else None,
            repad=repad if num_tokens < key.num_tokens else None,
            poison=poison,
            kind=kind,
            writes=writes,
        )

    def _new_writer(self) -> BatchWriter:
        limits = self._executor.limits
        return BatchWriter(
            max_num_reqs=limits.max_num_reqs, max_model_len=limits.max_model_len, page_size=limits.page_size
        )

    def _batch(self, parts: _Parts, *, is_decode: bool, mix: int) -> ScheduledBatch:
        random = torch.Generator().manual_seed(self._seed + 7 * mix)
        free = (torch.randperm(self._num_pages - 1, generator=random) + 1).tolist()
        items = []
        for index, (start, num_new) in enumerate(parts):
            end = start + num_new
            tokens = torch.randint(self._vocab_size, (end,), generator=random).tolist()
            num_prompt = max(end - 1, 1) if is_decode else end
            request = Request(
                request_id=f"qualify-{index}",
                prompt_token_ids=tokens[:num_prompt],
                output_token_ids=tokens[num_prompt:],
                params=_SAMPLED[(index + 3 * mix) % len(_SAMPLED)],
                num_computed_tokens=start,
                pages=[free.pop() for _ in range(pages_for(end, self._page_size))],
            )
            items.append(ScheduledRequest(request, start, num_new, True, is_decode))
        return ScheduledBatch(tuple(items))

    def _slots(self, batch: ScheduledBatch) -> tuple[Tensor, Tensor]:
        """Slots that the step writes, and those of the tokens before."""
        new: list[int] = []
        history: list[int] = []
        for item in batch.items:
            history += slots_for(item.request.pages, 0, item.start, self._page_size)
            new += slots_for(item.request.pages, item.start, item.num_new_tokens, self._page_size)
        device = self._graphed.device
        return torch.tensor(new, dtype=torch.int64, device=device), torch.tensor(
            history, dtype=torch.int64, device=device
        )

    def _fill_state(self, history: Tensor, poison: Poison, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        for name, tensor in self.state().items():
            if not tensor.is_floating_point():
                most = self._vocab_size if name == "sampled tokens" else 8  # few tokens are seen often
                tensor.copy_(torch.randint(most, tensor.shape, generator=random))
                continue
            tensor.fill_(poison.value_for(tensor.dtype))
            tensor[0].zero_()
            values = torch.randn((len(history), *tensor.shape[1:]), generator=random)
            tensor[history] = values.to(device=tensor.device, dtype=tensor.dtype)

    def _write_inputs(
        self, writer: BatchWriter, batch: ScheduledBatch, sizes: dict[str, int], *, is_full: bool, feeds: bool
    ) -> dict[str, Tensor]:
        """The static buffers as serving writes them; ``feeds``: every other decode takes its token on the device."""
        host = self._staging.open(sizes)
        writer.write(host, batch)
        if feeds:
            for row, item in enumerate(batch.items):
                if item.num_new_tokens == 1 and row % 2 == 0:
                    host["feed_rows"][host["sampled_rows"][row]] = 1 + row
        self._staging.upload(sizes)
        slots = self._graphed.buffers.views(sizes)
        graph_num_reqs = slots["seq_lens"].shape[0] if is_full else None
        self._executor.plan_attention(batch, host["block_tables"], graph_num_reqs=graph_num_reqs)
        return slots

    def _rows(self, slot: str, batch: ScheduledBatch) -> int | None:
        declared = self._graphed.buffers.slots[slot]
        return declared.rows({"num_tokens": batch.num_tokens, "num_reqs": batch.num_reqs})


def _chunks(num_tokens: int, longest: int) -> list[int]:
    """``num_tokens`` in as few parts as ``longest`` allows."""
    whole, rest = divmod(num_tokens, longest)
    return [longest] * whole + ([rest] if rest else [])
