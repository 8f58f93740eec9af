"""Shadow: one replayed step in K runs eagerly too, after its outputs were delivered, and is compared.

What it costs: on the step itself, device copies of its inputs, of its live outputs and of the state rows that it
writes (before and after); later, between two steps, one eager run and a wait for the device. When, is the caller's
choice, as long as what the step reads and does not write is still as it was; one step waits at most. The callable runs
once more than it was called, so breaks with effects on the host have them twice. Writes outside the rows that the owner
names are not seen here; `qualify` sees them. Used by `Graphed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ostinato.runtime.buffers import Sizes
from ostinato.runtime.capture import GeneratorLog, GeneratorStates
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.nest import map_tensors
from ostinato.runtime.qualify.break_arguments import run_watched
from ostinato.runtime.runners import (
    CapturedPlan,
    Rows,
    Snapshot,
    WrappedCallable,
    find_gap,
    generators_kept,
    state_kept,
)

__all__ = ["Resume", "Shadow", "ShadowCounts", "ShadowOwner", "ShadowVerdict", "WholeState"]

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


@dataclass(slots=True, kw_only=True)
class ShadowCounts:
    """What became of the steps that a shadow was to look at."""

    num_compared: int = 0
    num_skipped: int = 0
    """Not kept, since another one still waited."""
    num_dropped: int = 0
    """Not compared: what they read was overwritten or has moved meanwhile, or a copy or the eager run failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowVerdict:
    """A step that differed from its eager run."""

    key: GraphKey
    what: str
    where: str


@dataclass(slots=True, kw_only=True, eq=False)
class _Kept:
    """A step that waits for its eager run."""

    plan: CapturedPlan
    live: LiveBatch
    rows: Mapping[str, Rows]
    touched: Mapping[str, Rows]
    """The static inputs, and the rows."""
    before: Snapshot
    """Of what is touched."""
    resume: Resume
    random: GeneratorStates
    after: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Of the rows; this and what follows is known once the step has run."""
    outputs: Any = None
    versions: list[int] = field(default_factory=list)


class Shadow:
    """Counts replayed steps, keeps one in ``every``, and runs it again when asked.

    Args:
        every: K.
        owner: of the callable's state.
        wrapped: the callable.
        generators: the user's own that it draws from.
        is_bitwise: whether a replay must have the bits of eager.
        versions: of the weights that a key reads: others once one was written.
        counts: counted here.
        on_failed: told of a step that could not be kept, and why: nobody else is.
    """

    def __init__(
        self,
        every: int,
        *,
        owner: ShadowOwner,
        wrapped: WrappedCallable,
        generators: GeneratorLog,
        is_bitwise: bool,
        versions: Callable[[GraphKey], list[int]],
        counts: ShadowCounts,
        on_failed: Callable[[GraphKey, Exception], None],
    ) -> None:
        self._every = every
        self._owner = owner
        self._wrapped = wrapped
        self._generators = generators
        self._is_bitwise = is_bitwise
        self._num_steps = 0
        self._kept: _Kept | None = None
        self._versions = versions
        self._counts = counts
        self._on_failed = on_failed

    @property
    def kept_key(self) -> GraphKey | None:
        """Of the step that waits for its eager run, if any does."""
        return None if self._kept is None else self._kept.plan.key

    def begin_anew(self, owner: ShadowOwner) -> None:
        """Forget the step that was kept. ``owner``: of the state as it lies now."""
        self.drop_kept()
        self._owner = owner

    def drop_kept(self) -> None:
        """Forget the step that was kept, if any: it cannot be compared any more."""
        self._counts.num_dropped += self._kept is not None
        self._kept = None

    def replayed(self, plan: CapturedPlan, live: LiveBatch, sizes: Sizes) -> Any:
        """The outputs of a step that ``plan`` replays; every K-th is kept for `finish`, unless one is kept already."""
        self._num_steps += 1
        is_due = self._num_steps % self._every == 0
        if not is_due or self._kept is not None:
            self._counts.num_skipped += is_due
            return plan.replay(live.num_tokens)
        kept = self._tried(plan.key, lambda: self._begin(plan, live, sizes))
        outputs = plan.replay(live.num_tokens)
        if kept is not None:
            self._kept = self._tried(plan.key, lambda: self._complete(kept, outputs))
        return outputs

    def _tried(self, key: GraphKey, look: Callable[[], _Kept]) -> _Kept | None:
        """What ``look`` keeps of a step; None if it fails, which the step itself must not."""
        try:
            return look()
        except Exception as error:  # too little memory, or the owner's
            self._counts.num_dropped += 1
            self._on_failed(key, error)
            return None

    def _begin(self, plan: CapturedPlan, live: LiveBatch, sizes: Sizes) -> _Kept:
        rows = self._owner.written(plan.key, live)
        buffers = self._wrapped.buffers
        inputs = buffers.arena[: buffers.num_bytes_at(sizes)]
        touched = {"(static inputs)": (inputs, None), **rows}
        return _Kept(
            plan=plan,
            live=live,
            rows=rows,
            touched=touched,
            before=Snapshot(touched),
            resume=self._owner.resume(plan.key),
            random=GeneratorStates(self._wrapped.device, self._generators.entries()),
        )

    def _complete(self, kept: _Kept, outputs: Any) -> _Kept:
        key = kept.plan.key
        kept.after = Snapshot(kept.rows).saved
        kept.outputs = map_tensors(self._owner.cut(key, kept.live, outputs), torch.clone)
        kept.versions = self._versions(key)
        return kept

    def finish(self) -> ShadowVerdict | None:
        """Run the kept step eagerly, if there is one; what differed. Inputs and state are put back.

        A step whose weights were written since is dropped: an eager run would read the new ones.
        """
        if self._kept is not None and self._versions(self._kept.plan.key) != self._kept.versions:
            self.drop_kept()
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        key = kept.plan.key
        try:
            with state_kept(kept.touched):
                kept.before.restore()
                random = generators_kept(self._wrapped.device, self._generators, begin_at=kept.random)
                with random, kept.resume():
                    outputs, changed = run_watched(self._wrapped.bind(key), kept.plan)
                expected = map_tensors(self._owner.cut(key, kept.live, outputs), torch.clone)
                by_eager = Snapshot(kept.rows).saved
        except BaseException:
            self._counts.num_dropped += 1
            raise
        self._counts.num_compared += 1
        if changed is not None:  # the cause of what else differs
            return ShadowVerdict(key=key, what=str(changed), where=str(changed.context.get("source", "")))
        gap, _ = find_gap(expected, kept.outputs, is_exact=self._is_bitwise)
        if gap is not None:
            return ShadowVerdict(key=key, what=gap.detail, where=f"live output{gap.path}")
        for name, expected_rows in by_eager.items():
            gap, _ = find_gap(expected_rows, kept.after[name], is_exact=self._is_bitwise)
            if gap is not None:
                return ShadowVerdict(key=key, what=gap.detail, where=f"state {name}")
        return None
