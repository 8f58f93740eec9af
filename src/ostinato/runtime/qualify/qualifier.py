"""`Qualifier`: one callable's graphs against eager, on demand and while serving.

Ties qualification, bisection and the shadow to the step lock and to whoever takes bad keys out of service. What is
compared, and how, stands in the files beside it. Owned by `Graphed`, whose public methods delegate here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from ostinato.runtime.keys import GraphKey
from ostinato.runtime.qualify.bisect import Culprit
from ostinato.runtime.qualify.cases import QualificationCases
from ostinato.runtime.qualify.qualify import bisect_key, qualify_keys
from ostinato.runtime.qualify.report import KeyReport, QualificationReport
from ostinato.runtime.qualify.shadow import Shadow, ShadowCounts, ShadowOwner, WholeState
from ostinato.runtime.qualify.subject import Subject
from ostinato.runtime.runners import StepLock

__all__ = ["Qualifier", "Quarantine"]


class Quarantine(Protocol):
    """Takes a key out of service, and says why."""

    def __call__(self, key: GraphKey, *, found_by: str, what: str, where: str) -> None:
        """No step uses ``key`` from here on."""
        ...


class Qualifier:
    """Finds keys that do not do what eager does, and has them quarantined.

    Args:
        subject: the callable.
        lock: held while graphs or the callable run.
        quarantine: takes bad keys out of service.
        on_shadow_failed: told of a step that could not be kept or compared, and of the error.
        owner: of the callable's state; by default it is all that can be seen.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        lock: StepLock,
        quarantine: Quarantine,
        on_shadow_failed: Callable[[GraphKey, Exception], None],
        owner: ShadowOwner | None = None,
    ) -> None:
        self.subject = subject
        self._lock = lock
        self._quarantine = quarantine
        self._on_shadow_failed = on_shadow_failed
        self._owner = owner
        self.shadow: Shadow | None = None
        """Looks at one step in K, from `start_shadow` until `drop`."""
        self.shadow_counts = ShadowCounts()

    def qualify(
        self,
        keys: Sequence[GraphKey],
        cases: QualificationCases | None,
        *,
        seed: int,
        on_key: Callable[[KeyReport], None] | None,
    ) -> QualificationReport:
        """See `Graphed.qualify`; ``keys`` are captured."""
        self.finish_shadow()
        with self._lock, torch.no_grad():
            self._retire_outputs()
            report = qualify_keys(self.subject, keys, cases, seed=seed, on_key=on_key)
        for failed in report.failed:
            finding = failed.findings[0]
            self._quarantine(failed.key, found_by="qualify", what=finding.what, where=finding.where)
        return report

    def bisect(self, key: GraphKey, cases: QualificationCases | None, *, seed: int) -> list[Culprit]:
        """See `Graphed.bisect`; ``key`` is captured."""
        with self._lock, torch.no_grad():
            self._retire_outputs()
            return bisect_key(self.subject, key, cases, seed=seed)

    def owner(self) -> ShadowOwner:
        """Who knows what steps write, as it lies now."""
        return self._owner or WholeState(self.subject.state(), self.subject.cut)

    def start_shadow(self, every: int) -> None:
        """Look at one replayed step in ``every`` from now on; 0: at none."""
        if every:
            subject = self.subject
            self.shadow = Shadow(
                every,
                owner=self.owner(),
                wrapped=subject.wrapped,
                generators=subject.backend.generators,
                is_bitwise=subject.is_bitwise,
                versions=subject.captured.versions,
                counts=self.shadow_counts,
                on_failed=self._on_shadow_failed,
            )

    def finish_shadow(self) -> None:
        """Compare the step that the shadow has kept, if any. It is dropped if its eager run fails: nothing else may
        fail for a look at a step that is over."""
        if self.shadow is None:
            return
        failed, verdict = None, None
        with self._lock, torch.no_grad():
            shadow = self.shadow  # it may have gone while the lock was waited for
            key = None if shadow is None else shadow.kept_key
            if shadow is None or key is None:
                return
            try:
                if key in self.subject.captured.find_moved():
                    self.renew_shadow()  # an eager run would read something else
                verdict = shadow.finish()
            except Exception as error:  # too little memory, say
                failed = error
        if failed is not None:
            self._on_shadow_failed(key, failed)
        if verdict is not None:
            self._quarantine(verdict.key, found_by="shadow", what=verdict.what, where=verdict.where)

    def renew_shadow(self) -> None:
        """What the callable reads has moved: forget the step that was kept, and look at the state that is there now."""
        if self.shadow is not None:
            self.shadow.begin_anew(self.owner())

    @contextmanager
    def without_shadow(self) -> Iterator[None]:
        """Look at no step meanwhile."""
        shadow, self.shadow = self.shadow, None
        try:
            yield
        finally:
            self.shadow = shadow

    def drop(self) -> None:
        """The graphs are gone: forget the step that was kept."""
        if self.shadow is not None:
            self.shadow.drop_kept()
        self.shadow = None

    def _retire_outputs(self) -> None:
        """Nobody is left who may read what the last step has lent: it is poisoned, too."""
        self.subject.backend.generation.advance()
