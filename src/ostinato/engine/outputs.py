"""Whole answers, and the routing of updates to whoever waits for them.

Any call may run the engine's next step, and a step brings updates of all requests in progress. So whoever
waits for a request registers for it, and updates that nobody waits for are kept until somebody reads. A receiver that
raises loses its own request and nobody else's updates.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ostinato.engine.loop import EngineLoop
from ostinato.engine.request import FinishReason, TokenLogprobs
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import EngineError, OstinatoError
from ostinato.telemetry import EventBus, ReceiverFailed

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
        bus: told of receivers that raise.
        lock: held by each step, and by whatever else changes the loop.
    """

    def __init__(
        self,
        loop: EngineLoop,
        check_open: Callable[[], object],
        *,
        bus: EventBus | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.lock: AbstractContextManager[object] = lock or threading.RLock()
        self._loop = loop
        self._check_open = check_open
        self._bus = bus or EventBus()
        self._receivers: dict[str, Callable[[RequestUpdate], None]] = {}
        self._unread: list[RequestUpdate] = []
        self._left_over: list[RequestUpdate] = []  # of a step whose handing out was interrupted
        self.between_steps: Callable[[], None] | None = None
        """Called before each step."""

    @property
    def has_unread(self) -> bool:
        """Whether updates wait that nobody registered for."""
        return bool(self._unread or self._left_over)

    @property
    def num_receivers(self) -> int:
        """Requests that somebody waits for."""
        return len(self._receivers)

    def register(self, request_id: str, receive: Callable[[RequestUpdate], None]) -> None:
        """Give the updates of this request to ``receive``, until its last.

        If ``receive`` raises, the request is aborted, nothing more is given to it, and a `ReceiverFailed` is emitted.
        """
        self._receivers[request_id] = receive

    def step(self) -> None:
        """Run one step, and what is to be done between two."""
        with self.lock:
            self._check_open()
            if not self._left_over and self.between_steps is not None:
                self.between_steps()
            left, self._left_over = self._left_over, []
            updates = iter(left or self._loop.step())
            try:
                if not self._receivers:
                    self._unread += updates
                for update in updates:
                    receive = self._receivers.get(update.request_id, self._unread.append)
                    if update.finish_reason is not None:
                        self._receivers.pop(update.request_id, None)
                    try:
                        receive(update)
                    except Exception as error:
                        self._give_up(update, error)
            finally:  # an interrupt goes on to the caller; what it kept from others comes with the next step
                self._left_over += updates

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run steps until ``is_done``, which some of their updates bring about.

        Raises:
            EngineError: nothing is left to run, so that it never would be.
        """
        while True:
            with self.lock:  # no other thread may bring the last update between the question and the step
                if is_done():
                    return
                self._check_open()
                if not (self._left_over or self._loop.has_work()):
                    raise EngineError("a request got no last update and nothing is left to run")
                self.step()

    def _give_up(self, update: RequestUpdate, error: Exception) -> None:
        """Let nobody wait for a request whose receiver raised."""
        if update.finish_reason is None:
            self._receivers[update.request_id] = _discard
            self._loop.abort(update.request_id)
        self._bus.emit(ReceiverFailed(request_id=update.request_id, error=f"{type(error).__name__}: {error}"))

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
                self.run_until(lambda: bool(mail))
                update = mail.popleft()
                is_done = update.finish_reason is not None
                yield update
        finally:
            if not is_done:
                with self.lock:
                    self._loop.abort(request_id)


def _discard(_update: RequestUpdate) -> None:
    """Takes the updates of a request that nobody reads."""
