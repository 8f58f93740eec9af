"""`Measuring`: times the ways to run a step, and leaves everything as it found it. Called by `Graphed.measure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ostinato.errors import ConfigError
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import (
    CostTable,
    Dispatcher,
    Reason,
    StepsToTime,
    TimedStep,
    Turns,
    confirmed_costs,
    steps_to_time,
    time_steps,
)
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.qualify import Qualifier
from ostinato.runtime.runners import CapturedKeys, MadeUpRuns, MarkedDevice, state_kept
from ostinato.runtime.steps.live import LiveSteps, no_grad
from ostinato.runtime.steps.made_up import MadeUpSteps

__all__ = ["Measuring"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Measuring:
    """What it takes to time the steps of one callable."""

    config: GraphConfig
    live: LiveSteps
    runs: MadeUpRuns
    dispatcher: Dispatcher
    captured: CapturedKeys
    qualifier: Qualifier

    def measure(
        self,
        steps: StepsToTime | None,
        *,
        sizes: Sequence[int] | None,
        budget_seconds: float,
        overlap: bool,
        clock: Callable[[], float],
        on_step: Callable[[], None] | None,
    ) -> CostTable:
        """The costs of the keys that may be used, captured all; see `Graphed.measure`."""
        keys = [key for key in self.captured.plans if self.dispatcher.usable(key)]
        if sizes is not None:
            there = {key.num_tokens for key in keys}
            if (
                isinstance(sizes, str | bytes)
                or not isinstance(sizes, Iterable)
                or not sizes
                or not set(sizes) <= there
            ):
                raise ConfigError(f"sizes is {sizes!r}", fix=f"name buckets that are captured: {sorted(there)}")
        self.qualifier.finish_shadow()
        steps = steps or self._made_up()
        wrapped = self.runs.wrapped
        overlap = overlap and wrapped.device.type == "cuda"  # elsewhere the host does the work itself
        turns = Turns(MarkedDevice(wrapped.device), overlap=overlap, clock=clock)
        kept = state_kept({**steps.state(), "(static buffers)": wrapped.buffers.arena})
        random = self.qualifier.subject.seeded()
        with kept, self.qualifier.without_shadow(), self.dispatcher.muted(), random, no_grad():
            todo = self._todo(keys, steps, sizes)
            began = clock()
            first = time_steps(todo, steps, take_turn=turns, budget_seconds=budget_seconds, on_step=on_step)
            spent = clock() - began
            return confirmed_costs(first, steps, take_turn=turns, budget_seconds=spent, on_step=on_step)

    def unmeasured(self, costs: CostTable, steps: StepsToTime | None) -> list[GraphKey]:
        """Keys that are or will be captured and have no cost in ``costs``; see `Graphed.unmeasured`."""
        there = {sample.cost for sample in costs.samples}
        against = self.dispatcher.why_blocked
        keys = [key for key in self.dispatcher.keys if against(key) in (None, Reason.NOT_CAPTURED_YET)]
        todo = self._todo(keys, steps or self._made_up(), None)
        missing = (step.decision.key for step in todo if step.cost not in there)
        return list(dict.fromkeys(key for key in missing if key is not None))

    def _todo(self, keys: list[GraphKey], steps: StepsToTime, sizes: Sequence[int] | None) -> list[TimedStep]:
        config = self.config
        query_lens = () if config.max_num_reqs is None else config.uniform_query_lens
        return steps_to_time(keys, steps, query_lens=query_lens, tiers=config.kv_tiers, sizes=sizes)

    def _made_up(self) -> MadeUpSteps:
        state = self.qualifier.subject.state()
        planned = frozenset(self.dispatcher.keys)
        return MadeUpSteps(self.live, self.runs, state=state, max_num_reqs=self.config.max_num_reqs, planned=planned)
