"""`FullRunner`: the whole callable in one graph. Break marks are plain calls and get captured too."""

from __future__ import annotations

from typing import Any

from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.runners.plan import CapturedPlan
from ostinato.runtime.runners.runner import Call

__all__ = ["FullRunner"]


class FullRunner:
    """`Runner` for `RuntimeMode.FULL`."""

    runtime_mode = RuntimeMode.FULL

    def __init__(self, backend: CaptureBackend) -> None:
        self._backend = backend

    def warm_up(self, key: GraphKey, call: Call) -> Any:
        """See `Runner.warm_up`."""
        with self._backend.session(), handling_breaks(None, is_planning=True):
            return call()

    def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
        """See `Runner.capture`."""
        with self._backend.session(), handling_breaks(None, is_planning=True):
            self._backend.begin()
            outputs = call()
            graph = self._backend.end()
            return CapturedPlan(
                key=key,
                entries=[graph],
                outputs=outputs,
                externals=self._backend.externals(),
                generation=self._backend.generation,
            )
