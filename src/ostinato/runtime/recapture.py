"""`Recapturing`: the policy ``on_moved="recapture"``.

A graph that reads what has moved is given back at once, and so are all others that do: their own guards might come
to it steps later. Each is captured anew just before the first step that would use it, at the addresses that hold then;
one that cannot be stays out. Called by live steps and by the facade, which hold the step lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import AddressChangedError, CaptureNotAllowedError
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.dispatch import Decision, Dispatcher, Reason
from ostinato.runtime.keys import GraphKey, LiveBatch
from ostinato.runtime.late_capture import LateCapture
from ostinato.runtime.qualify import Qualifier
from ostinato.runtime.service import KeyService
from ostinato.telemetry import CaptureFailed, EventBus

__all__ = ["Recapturing"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recapturing:
    """Takes keys out of service when what they read moves, and brings them back."""

    backend: CaptureBackend
    bus: EventBus
    dispatcher: Dispatcher
    service: KeyService
    late: LateCapture
    qualifier: Qualifier

    def withdraw(self, key: GraphKey, error: AddressChangedError) -> None:
        """``key`` reads what has moved, as ``error`` says."""
        self._withdraw(self.service.find_moved() | {key: error})

    def withdraw_moved(self) -> None:
        """Whatever has moved by now."""
        self._withdraw(self.service.find_moved())

    def is_wanted(self, decision: Decision) -> bool:
        """Whether ``decision`` would be another one if what was withdrawn were captured."""
        return any(rejection.reason is Reason.MOVED for rejection in decision.alternatives)

    def recapture_for(self, live: LiveBatch) -> Decision:
        """The decision for ``live``, once what it would rather use is captured anew. The static buffers lose what they
        hold, and so do outputs that were lent."""
        decision = self.dispatcher.decide(live)
        while (key := self._first_wanted(decision)) is not None and self._recapture(key):
            decision = self.dispatcher.decide(live)
        return decision

    def _first_wanted(self, decision: Decision) -> GraphKey | None:
        names = [rejection.candidate for rejection in decision.alternatives if rejection.reason is Reason.MOVED]
        wanted = [key for key in self.service.keys if str(key) in names]
        return min(wanted, key=lambda key: names.index(str(key)), default=None)

    def _recapture(self, key: GraphKey) -> bool:
        """Capture ``key``; False if nobody can now."""
        self.backend.generation.advance()  # what a capture runs writes bridges
        self.withdraw_moved()  # owners are counted anew: what was dropped before must be seen before
        kept = self.service.kept()
        try:
            report, plans = self.late.capture([key], on_key=None, is_again=True)
        except CaptureNotAllowedError:  # another thread captures something: a later step will try again
            return False
        except Exception as error:  # of a hook, say: it is no reason to lose the step
            self.bus.emit(CaptureFailed(key=str(key), error=str(error)))
            self.service.give_up([key])
            return True
        self.service.swap(plans, [], kept=kept)
        self.service.give_up(report.failed)
        return True

    def _withdraw(self, moved: dict[GraphKey, AddressChangedError]) -> None:
        if moved:
            self.service.withdraw(moved)
            self.qualifier.renew_shadow()
