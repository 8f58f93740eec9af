"""Work shaped toward the sizes that are captured: less padding, for at most one step's wait of a request.

Two rules. A prompt that is not through in this step anyway, with nobody behind it, is cut where its steps pad least, in
as many steps as without. And a request waits once, for one step, if its admission would grow the batch just over a
bucket of decode: by then another may have ended. Not one with a deadline that the wait could break. Pure: no device, no
clock. Used by the scheduler, which may go without.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection

from ostinato.engine.request import Request

__all__ = ["BatchShaper"]


class BatchShaper:
    """Buckets as the scheduler sees them.

    Args:
        decode_sizes: captured sizes of decode, in requests; empty shapes no admission.
        token_sizes: captured sizes of mixed steps, in tokens; empty shapes no chunk.
    """

    def __init__(self, *, decode_sizes: Collection[int], token_sizes: Collection[int]) -> None:
        self.follow(decode_sizes=decode_sizes, token_sizes=token_sizes)
        self._has_waited: Request | None = None  # first in line, where it is not admitted by its own fault
        self._last_now: float | None = None
        self._step_seconds = 0.0
        self.num_waits = 0
        """Requests that waited a step so far."""
        self.num_cut_chunks = 0
        """Chunks that were ended on a bucket so far."""

    def follow(self, *, decode_sizes: Collection[int], token_sizes: Collection[int]) -> None:
        """These sizes are captured from now on."""
        self._decode_sizes = sorted(set(decode_sizes))
        self._token_sizes = sorted(set(token_sizes))

    def begin_step(self, now: float | None) -> None:
        """A step is scheduled at ``now``, in seconds of the clock of deadlines; None if no request has one."""
        if now is not None and self._last_now is not None:
            seconds = now - self._last_now
            self._step_seconds = max(seconds, 0.9 * self._step_seconds + 0.1 * seconds)  # slow steps count at once
        self._last_now = now

    def chunk(self, num_new: int, *, num_scheduled: int, remaining: int, budget: int) -> int:
        """Tokens of a chunk that does not end its prompt, from 1 to ``num_new``, so that the prompt pads least.

        The cut moves tokens to the prompt's last step; where that would make one step more, nothing is cut.

        Args:
            num_new: what there is room for.
            num_scheduled: tokens of the step before this chunk; later steps are taken to have as many.
            remaining: of the prompt, this chunk included; more than ``num_new``.
            budget: tokens that this step has for the prompt, and later ones are taken to have.
        """
        this = num_scheduled + num_new
        last = (remaining - num_new - 1) % budget + 1  # tokens of the prompt's last chunk, if nothing is cut
        place = bisect_right(self._token_sizes, this)
        to_bucket_here = this - self._token_sizes[place - 1] if place else 0
        to_bucket_there = self._padding(num_scheduled + last)

        def padding(cut: int) -> int:
            return self._padding(this - cut) + self._padding(num_scheduled + last + cut)

        cuts = [cut for cut in (0, to_bucket_here, to_bucket_there) if cut < num_new and last + cut <= budget]
        cut = min(cuts, key=padding)  # the first of equals: nothing is cut for nothing
        self.num_cut_chunks += cut > 0
        return num_new - cut

    def _padding(self, num_tokens: int) -> int:
        """Rows that a mixed step of ``num_tokens`` computes for nobody; above the largest bucket none."""
        place = bisect_left(self._token_sizes, num_tokens)
        return self._token_sizes[place] - num_tokens if place < len(self._token_sizes) else 0

    def holds_back(self, request: Request, *, num_running: int, num_waiting: int) -> bool:
        """Whether ``request``, the first in line, waits for the next step. Each does so once at most.

        Args:
            num_running: requests of the step so far; decode has as many rows.
            num_waiting: requests in line, this one included.
        """
        if request is self._has_waited:
            return False
        place = bisect_right(self._decode_sizes, num_running)
        if not place or self._decode_sizes[place - 1] != num_running:
            return False  # there is a padded row to take
        if place < len(self._decode_sizes) and num_running + num_waiting >= self._decode_sizes[place]:
            return False  # those in line fill the next bucket
        if not self._can_wait(request):
            return False
        self._has_waited = request
        self.num_waits += 1
        return True

    def _can_wait(self, request: Request) -> bool:
        if request.deadline is None:
            return True
        if self._last_now is None or not self._step_seconds:
            return False  # nothing is known of a step's length yet
        num_steps = request.max_num_tokens - request.num_prompt_tokens + 2  # its prompt, its tokens, and the wait
        return request.deadline - self._last_now > 2 * num_steps * self._step_seconds
