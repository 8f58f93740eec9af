"""`CapturedKeys`: the plans of one callable by key, and the guards that stand before each.

Owns both until they are dropped. Changed under the step lock and read without it, so its dicts are replaced, never
changed. Which key a step takes is the dispatcher's business. Called by the facade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostinato.errors import AddressChangedError, RuntimeStateError
from ostinato.runtime.buffers import Place, PlanGuards, watch_tensors
from ostinato.runtime.keys import GraphKey
from ostinato.runtime.runners.plan import CapturedPlan

__all__ = ["CapturedKeys"]


class CapturedKeys:
    """Plans, each with its guards.

    Args:
        guard_level: see `GraphConfig.guards`.
    """

    def __init__(self, *, guard_level: str) -> None:
        self._level = guard_level
        self._plans: dict[GraphKey, CapturedPlan] = {}
        self._guards: dict[GraphKey, PlanGuards] = {}

    @property
    def plans(self) -> Mapping[GraphKey, CapturedPlan]:
        """By key, largest first; as they are now."""
        return self._plans

    def add(self, key: GraphKey, plan: CapturedPlan) -> None:
        """Take a plan over."""
        self._plans = {**self._plans, key: plan}

    def drop(self, key: GraphKey) -> None:
        """Give back the plan of ``key``, if there is one, and what its guards kept. `watch` or `settle` must
        follow."""
        plans, guards = dict(self._plans), dict(self._guards)
        plan = plans.pop(key, None)
        guards.pop(key, None)
        self._plans, self._guards = plans, guards
        if plan is not None:
            plan.close()

    def reorder(self, keys: Sequence[GraphKey]) -> None:
        """List plans in the order of ``keys``, all of which are named."""
        self._plans = {key: self._plans[key] for key in keys if key in self._plans}

    def watch(self, places: Sequence[Place], state: Sequence[Place], *, known: set[int]) -> None:
        """Guard what the plans read, once all are captured, or what those do that were added since. Its memory is kept
        from here on, unless guards are off.

        Args:
            places: where the callable's tensors may come from.
            state: places that it is said to read.
            known: addresses of memory that is guarded otherwise.
        """
        added: dict[GraphKey, PlanGuards] = {}
        for key, plan in self._plans.items():
            if key in self._guards:
                continue  # what it read is known no more, and guarded already
            watched = []
            if self._level != "off":
                watched = watch_tensors(plan.externals, places, state=state, known=known)
            plan.externals.clear()
            added[key] = PlanGuards(str(key), watched, level=self._level)
        self._guards = {**self._guards, **added}
        self.settle()

    def settle(self) -> None:
        """Count the owners of what is read, after plans came or went. What was dropped before is not seen later."""
        for guards in self._guards.values():
            guards.settle()

    def plan_of(self, key: GraphKey) -> CapturedPlan:
        """The plan of ``key``.

        Raises:
            RuntimeStateError: there is none; the message lists those that are.
        """
        try:
            return self._plans[key]
        except KeyError:
            captured = ", ".join(str(k) for k in self._plans) or "none"
            if not isinstance(key, GraphKey):
                fix = "pass one of the facade's `keys`, or Decision.key"
                raise RuntimeStateError(f"{key!r} is no GraphKey", fix=fix, captured=captured) from None
            raise RuntimeStateError(f"there is no graph of {key}", fix=f"captured keys: {captured}") from None

    def check(self, key: GraphKey) -> None:
        """What is due before a replay of ``key``; raises what `PlanGuards.check` does."""
        self._guards[key].check()

    def check_all(self, key: GraphKey | None = None) -> None:
        """Look at everything that ``key`` reads, or that any key does; raises what `PlanGuards.check` does."""
        for guards in self._guards.values() if key is None else [self._guards[key]]:
            guards.check_all()

    def find_moved(self) -> dict[GraphKey, AddressChangedError]:
        """The keys that read what is not as it was, each with what `check_all` says of it."""
        found = {}
        for key, guards in self._guards.items():
            try:
                guards.check_all()
            except AddressChangedError as error:
                found[key] = error.with_traceback(None)  # its frames hold what the guards keep
        return found

    def versions(self, key: GraphKey) -> list[int]:
        """See `PlanGuards.versions`; empty where ``key`` has no guards."""
        guards = self._guards.get(key)
        return [] if guards is None else guards.versions()

    def clear(self) -> None:
        """Give all graphs back, and what the guards kept."""
        plans, self._plans, self._guards = self._plans, {}, {}
        for plan in plans.values():
            plan.close()
