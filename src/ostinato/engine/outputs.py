"""Whole answers, and the routing of updates to whoever waits for them.

Any call may run the engine's next step, and a step brings updates of all requests in progress. So whoever
waits for a request registers for it, and updates that nobody waits for are kept until somebody reads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ostinato.engine.loop import EngineLoop, RequestUpdate
from ostinato.engine.request import FinishReason, TokenLogprobs
from ostinato.errors import OstinatoError

__all__ = ["RequestOutput", "UpdateRouter"]


@dataclass
class RequestOutput:
    """One request's answer."""

    request_id: str
    prompt: str | None
    """As given; None for token ids and for conversations."""
    prompt_token_ids: list[int] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: OstinatoError | None = None
    """Why there is no (or no complete) answer; ``finish_reason`` is ERROR then."""

    def extend(self, update: RequestUpdate) -> None:
        """Add what one step brought."""
        self.text += update.text
        self.token_ids.extend(update.token_ids)
        self.logprobs.extend(update.logprobs)
        self.finish_reason = update.finish_reason or self.finish_reason
        self.error = update.error or self.error


class UpdateRouter:
    """Runs the loop's steps, one at a time over all threads, and hands each update to its receiver.

    Args:
        loop: whose steps are run.
        check_open: raises if no step may be run any more.
    """

    def __init__(self, loop: EngineLoop, check_open: Callable[[], object]) -> None:
        self.lock = threading.RLock()
        """Held by each step; hold it for whatever else changes the loop."""
        self._loop = loop
        self._check_open = check_open
        self._receivers: dict[str, Callable[[RequestUpdate], None]] = {}
        self._unread: list[RequestUpdate] = []

    @property
    def has_unread(self) -> bool:
        """Whether updates wait that nobody registered for."""
        return bool(self._unread)

    @property
    def num_receivers(self) -> int:
        """Requests that somebody waits for."""
        return len(self._receivers)

    def register(self, request_id: str, receive: Callable[[RequestUpdate], None]) -> None:
        """Give the updates of this request to ``receive``, until its last."""
        self._receivers[request_id] = receive

    def step(self) -> None:
        """Run one step."""
        with self.lock:
            self._check_open()
            for update in self._loop.step():
                receive = self._receivers.get(update.request_id, self._unread.append)
                if update.finish_reason is not None:
                    self._receivers.pop(update.request_id, None)
                receive(update)

    def take_unread(self) -> list[RequestUpdate]:
        """Updates that nobody registered for, oldest first."""
        with self.lock:
            unread, self._unread = self._unread, []
            return unread

    def follow(self, request_id: str) -> Iterator[RequestUpdate]:
        """Updates of this request, running steps as needed. Leaving early aborts it."""
        updates = self._follow(request_id)
        next(updates)  # a generator that never ran would not clean up either
        return updates

    def _follow(self, request_id: str) -> Iterator[RequestUpdate]:
        mail: deque[RequestUpdate] = deque()
        self.register(request_id, mail.append)
        is_done = False
        try:
            yield RequestUpdate(request_id=request_id)
            while not is_done:
                while not mail:
                    self.step()
                update = mail.popleft()
                is_done = update.finish_reason is not None
                yield update
        finally:
            if not is_done:
                with self.lock:
                    self._loop.abort(request_id)
