"""The two lines of requests, waiting and running, and the moves between them.

Kept in arrival order across both: everyone running arrived before everyone waiting. Admission takes
the oldest waiting request and preemption the youngest running one, so the order holds without
timestamps. Pages and budgets are the scheduler's affair. Used by the scheduler alone.
"""

from __future__ import annotations

from collections import deque

from ostinato.engine.request import Request
from ostinato.errors import RequestError

__all__ = ["RequestQueues"]


class RequestQueues:
    """Waiting and running requests, oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._by_id: dict[str, Request] = {}

    def get(self, request_id: str) -> Request | None:
        """The request in either line, or None."""
        return self._by_id.get(request_id)

    def append(self, request: Request) -> None:
        """Put a new request at the end of the waiting line.

        Raises:
            RequestError: a request with this id is already here.
        """
        if request.request_id in self._by_id:
            message = f"request id {request.request_id!r} is already in use"
            raise RequestError(message, fix="give each request an id of its own")
        self._by_id[request.request_id] = request
        self.waiting.append(request)

    def admit(self) -> Request:
        """Move the oldest waiting request to the end of the running line."""
        request = self.waiting.popleft()
        self.running.append(request)
        return request

    def preempt_youngest(self) -> Request:
        """Move the youngest running request to the head of the waiting line."""
        request = self.running.pop()
        self.waiting.appendleft(request)
        return request

    def remove(self, request: Request) -> bool:
        """Take a request out of its line; False when it is in neither."""
        if self._by_id.get(request.request_id) is not request:
            return False
        del self._by_id[request.request_id]
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        return True
