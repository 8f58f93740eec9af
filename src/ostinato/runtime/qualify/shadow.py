"""Shadow: one replayed step in K runs eagerly too, after its outputs were delivered, and is compared.

What it costs: on the step itself, device copies of its inputs, of its live outputs and of the state rows that it
writes (before and after); before the next step, one eager run and a wait for the device. The callable runs once
more than it was called, so breaks with effects on the host have them twice. Writes outside the rows that the owner
names are not seen here; `qualify` sees them. Used by `Graphed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ostinato.runtime.buffers import Sizes, StaticBuffers
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.nest import map_tensors
from ostinato.runtime.runners import Call, find_gap, run_eager

__all__ = ["Resume", "Shadow", "ShadowOwner", "ShadowVerdict", "WholeState", "state_kept"]

Rows = tuple[torch.Tensor, torch.Tensor | None]
"""A state tensor and the rows of it that a step writes, [num_rows] int64; None: any."""
Resume = Callable[[], AbstractContextManager[Any]]
"""Brings back what the callable looked up while it ran."""


class ShadowOwner(Protocol):
    """What only the owner of a callable knows of its steps."""

    def written(self, key: GraphKey, live: LiveBatch) -> Mapping[str, Rows]:
        """State that the step in the static buffers is about to write. The rows are the caller's own tensors."""
        ...

    def cut(self, key: GraphKey, live: LiveBatch, outputs: Any) -> Any:
        """The live part of padded outputs, as views."""
        ...

    def resume(self, key: GraphKey) -> Resume:
        """For the step that runs now."""
        ...


class WholeState:
    """Owner of a callable that keeps what it writes in plain sight, or nothing.

    Args:
        state: every tensor that a step may write.
        cut: the live part of outputs with so many live tokens.
    """

    def __init__(self, state: Mapping[str, torch.Tensor], cut: Callable[[Any, int], Any]) -> None:
        self._state = dict(state)
        self._cut = cut

    def written(self, key: GraphKey, live: LiveBatch) -> Mapping[str, Rows]:
        """See `ShadowOwner.written`."""
        return {name: (tensor, None) for name, tensor in self._state.items()}

    def cut(self, key: GraphKey, live: LiveBatch, outputs: Any) -> Any:
        """See `ShadowOwner.cut`."""
        return self._cut(outputs, live.num_tokens)

    def resume(self, key: GraphKey) -> Resume:
        """See `ShadowOwner.resume`."""
        return nullcontext


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowVerdict:
    """A step that differed from its eager run."""

    key: GraphKey
    what: str
    where: str


@dataclass(slots=True, kw_only=True, eq=False)
class _Kept:
    """A step that waits for its eager run."""

    key: GraphKey
    live: LiveBatch
    sizes: Sizes
    inputs: torch.Tensor
    rows: Mapping[str, Rows]
    before: dict[str, torch.Tensor]
    resume: Resume
    random: list[torch.Tensor]
    after: dict[str, torch.Tensor]
    outputs: Any = None


class Shadow:
    """Counts replayed steps, keeps one in ``every``, and runs it again when asked.

    Args:
        every: K.
        owner: of the callable's state.
        buffers: the static inputs.
        bind: the callable on the static buffers at a key's padded sizes.
        is_bitwise: whether a replay must have the bits of eager.
    """

    def __init__(
        self,
        every: int,
        *,
        owner: ShadowOwner,
        buffers: StaticBuffers,
        bind: Callable[[GraphKey], Call],
        is_bitwise: bool,
    ) -> None:
        self._every = every
        self._owner = owner
        self._buffers = buffers
        self._bind = bind
        self._is_bitwise = is_bitwise
        self._num_steps = 0
        self._kept: _Kept | None = None
        self.num_compared = 0

    def replayed(self, key: GraphKey, live: LiveBatch, sizes: Sizes, replay: Call) -> Any:
        """The outputs of ``replay``, a step of ``key``; every K-th is kept for `finish`."""
        self._num_steps += 1
        if self._num_steps % self._every:
            return replay()
        rows = self._owner.written(key, live)
        kept = _Kept(
            key=key,
            live=live,
            sizes=sizes,
            inputs=self._inputs(sizes).clone(),
            rows=rows,
            before=_read(rows),
            resume=self._owner.resume(key),
            random=_random_state(self._buffers.arena.device),
            after={},
        )
        outputs = replay()
        kept.after = _read(rows)
        kept.outputs = map_tensors(self._owner.cut(key, live, outputs), torch.clone)
        self._kept = kept
        return outputs

    def finish(self) -> ShadowVerdict | None:
        """Run the kept step eagerly, if there is one; what differed. Inputs and state are put back."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        inputs = self._inputs(kept.sizes)
        now, state_now = inputs.clone(), _read(kept.rows)
        try:
            with torch.inference_mode():
                inputs.copy_(kept.inputs)
            _write(kept.rows, kept.before)
            with _random_as(kept.random, inputs.device), kept.resume():
                outputs = run_eager(self._bind(kept.key))
            expected = map_tensors(self._owner.cut(kept.key, kept.live, outputs), torch.clone)
            by_eager = _read(kept.rows)
        finally:
            _write(kept.rows, state_now)
            with torch.inference_mode():
                inputs.copy_(now)
        self.num_compared += 1
        gap, _ = find_gap(expected, kept.outputs, is_exact=self._is_bitwise)
        if gap is not None:
            return ShadowVerdict(key=kept.key, what=gap.detail, where=f"live output{gap.path}")
        for name, expected_rows in by_eager.items():
            gap, _ = find_gap(expected_rows, kept.after[name], is_exact=self._is_bitwise)
            if gap is not None:
                return ShadowVerdict(key=kept.key, what=gap.detail, where=f"state {name}")
        return None

    def _inputs(self, sizes: Sizes) -> torch.Tensor:
        return self._buffers.arena[: self._buffers.num_bytes_at(sizes)]


@contextmanager
def state_kept(rows: Mapping[str, Rows], device: torch.device) -> Iterator[None]:
    """Put back ``rows``, and the random generators of the host and of ``device``, whatever ran meanwhile."""
    before = _read(rows)
    with _random_as(_random_state(device), device):
        try:
            yield
        finally:
            _write(rows, before)


def _read(rows: Mapping[str, Rows]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() if index is None else tensor[index] for name, (tensor, index) in rows.items()}


def _write(rows: Mapping[str, Rows], values: Mapping[str, torch.Tensor]) -> None:
    with torch.inference_mode():  # some of them may have been made in it
        for name, (tensor, index) in rows.items():
            if index is None:
                tensor.copy_(values[name])
            else:
                tensor.index_copy_(0, index, values[name])


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


class _random_as:
    """Generators as they were for the kept step, put back at exit."""

    def __init__(self, states: list[torch.Tensor], device: torch.device) -> None:
        devices = [device.index or 0] if device.type == "cuda" else []
        self._fork = torch.random.fork_rng(devices=devices)
        self._states, self._device = states, device

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.set_rng_state(self._states[0])
        if len(self._states) > 1:
            torch.cuda.set_rng_state(self._states[1], self._device)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)
