"""`RequestUpdates`: what each request is told: its tokens as text, and its end.

Looks at the tokens of a step only where one may end its request or somebody reads along; of a request that is not
streamed there is one update, at its end. Text that cannot be made ends its own request alone. Called by `EngineLoop`,
which says what has ended otherwise, and fetches the updates after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.engine.request import FinishReason, Request, TokenLogprobs, natural_finish
from ostinato.engine.sampling import SampleResult
from ostinato.engine.scheduler import ScheduledBatch, Scheduler
from ostinato.engine.step_errors import with_cause
from ostinato.engine.text import TextState, Tokenizer
from ostinato.errors import EngineError, OstinatoError, RequestError

__all__ = ["RequestUpdate", "RequestUpdates"]


@dataclass(slots=True)
class RequestUpdate:
    """What one step brought for one request; for one that is not streamed, all that ever came.

    Not frozen and not by keyword only, because either would double its cost: one a token of each stream.
    """

    request_id: str
    text: str = ""
    """New text; held back while it may be the start of a stop string or half a character."""
    token_ids: tuple[int, ...] = ()
    """New tokens."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: OstinatoError | None = None


class RequestUpdates:
    """Updates of requests in progress, kept until they are taken.

    Args:
        scheduler: takes the ends that tokens bring.
        tokenizer: None for an engine without text.
        eos_token_ids: tokens that end a request unless it ignores them.
        max_model_len: tokens a request may hold.
        on_end: called with the id of each request that has ended.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        tokenizer: Tokenizer | None,
        eos_token_ids: Collection[int],
        max_model_len: int,
        on_end: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self._on_end = on_end
        self._texts: dict[str, TextState] = {}
        self._untaken: list[RequestUpdate] = []

    def __len__(self) -> int:
        """Updates that wait to be taken."""
        return len(self._untaken)

    def take(self) -> list[RequestUpdate]:
        """All that wait, oldest first."""
        updates, self._untaken = self._untaken, []
        return updates

    def check_id(self, request_id: str) -> None:
        """An id is in use until the last update of its request is taken.

        Raises:
            RequestError: it is.
        """
        if request_id in self._texts or any(update.request_id == request_id for update in self._untaken):
            raise RequestError(f"request id {request_id!r} is already in use", fix="give each request an id of its own")

    def follow(self, request: Request) -> None:
        """Make updates of ``request`` from here on, until its end."""
        self._texts[request.request_id] = TextState(self._tokenizer, request)

    @property
    def followed(self) -> list[Request]:
        """Requests whose end was not told yet."""
        return [state.request for state in self._texts.values()]

    def hand_out(self, batch: ScheduledBatch, result: SampleResult) -> None:
        """Tell of a step's tokens, which the scheduler has entered. Requests that are not watched are looked at only
        where one may be the last."""
        may_end, is_watched = self._looks(batch, result.chosen)
        requests, logprobs, updates = batch.sampling, result.logprobs, self._untaken
        at = (may_end if is_watched is None else may_end | is_watched).nonzero()[0]
        if not len(at):
            return
        for index, token_id, is_due in zip(at.tolist(), result.chosen[at].tolist(), may_end[at].tolist(), strict=True):
            request = requests[index]
            if request.finish_reason is None:
                update = self._update_of(request, token_id, logprobs[index], may_end=is_due)
                if update is not None:
                    updates.append(update)

    def end(self, request: Request, reason: FinishReason, error: OstinatoError | None = None) -> None:
        """Tell the end of a request that brings no token."""
        state, text = self._forget(request.request_id), ""
        if state is not None and (error is None or not request.is_streamed):
            try:
                text = state.close(is_cut=error is not None)
            except Exception as cause:
                reason, error = FinishReason.ERROR, error or _no_text(request.request_id, cause)
        if request.is_streamed:
            update = RequestUpdate(request_id=request.request_id, text=text, finish_reason=reason, error=error)
        else:
            update = _whole(request, text, reason, error)
        self._untaken.append(update)

    def _looks(
        self, batch: ScheduledBatch, chosen: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """[num_sampling] whose token may be their last, as `natural_finish` then says, and who else is watched.

        Stop tokens of a request's own are not looked at here: it is watched.
        """
        decodes, num_decodes = batch.decodes, batch.num_decodes
        may_end = np.zeros(len(chosen), dtype=np.bool_)
        may_end[num_decodes:] = True
        if decodes is None:
            return may_end, None
        near = decodes.within(2)  # the token that the step computed and the one that it chose
        if near is not None:
            may_end[:num_decodes] = near
        for token_id in self._eos_token_ids:
            may_end[:num_decodes] |= chosen[:num_decodes] == token_id
        if not decodes.roster.has_watched:
            return may_end, None
        is_watched = np.zeros(len(chosen), dtype=np.bool_)
        is_watched[:num_decodes] = decodes.roster.is_watched
        return may_end, is_watched

    def _update_of(
        self, request: Request, token_id: int, logprobs: TokenLogprobs | None, *, may_end: bool
    ) -> RequestUpdate | None:
        """Text and end of a request that has just got a token; None while it is not streamed and goes on."""
        reason: FinishReason | None = None
        if logprobs is not None:
            request.logprobs.append(logprobs)
        if may_end or token_id in request.params.stop_token_ids:
            reason = natural_finish(request, eos_token_ids=self._eos_token_ids, max_model_len=self._max_model_len)
        state, failed = self._texts[request.request_id], None
        try:
            if reason is FinishReason.STOP:  # the token is no text
                text = state.close(is_stop_token=True)
            else:
                text, has_met_stop = state.push(token_id)
                if has_met_stop:
                    reason = FinishReason.STOP
                if reason is not None:
                    text += state.close(is_cut=has_met_stop)
        except Exception as error:
            text, reason, failed = "", FinishReason.ERROR, _no_text(request.request_id, error)
        if reason is not None:
            self._scheduler.finish(request, reason, failed)
            self._forget(request.request_id)
        if not request.is_streamed:
            return None if reason is None else _whole(request, text, reason, failed)
        # By place: names cost more than all else here.
        found = () if logprobs is None else (logprobs,)
        return RequestUpdate(request.request_id, text, (token_id,), found, reason, failed)

    def _forget(self, request_id: str) -> TextState | None:
        """Let go of a request in progress."""
        self._on_end(request_id)
        return self._texts.pop(request_id, None)


def _whole(request: Request, text: str, reason: FinishReason, error: OstinatoError | None) -> RequestUpdate:
    """The one update of a request that is not streamed."""
    return RequestUpdate(
        request_id=request.request_id,
        text=text,
        token_ids=tuple(request.output_token_ids),
        logprobs=tuple(request.logprobs),
        finish_reason=reason,
        error=error,
    )


def _no_text(request_id: str, cause: Exception) -> EngineError:
    failed = EngineError(f"the tokens of request {request_id!r} cannot be made text: {cause}", request=request_id)
    return with_cause(failed, cause)
