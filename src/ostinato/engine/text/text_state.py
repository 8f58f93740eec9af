"""One request's text as its tokens come: detokenised, and held back while a stop string may be beginning.

Joins an incremental detokenizer and the stop strings. Text that nobody reads before the end is made at the end, in one
go. Called by the loop, one object a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.engine.request import Request
from ostinato.engine.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from ostinato.engine.text.tokenizer import Tokenizer

__all__ = ["TextState"]


class TextState:
    """Turns the tokens of a request into text.

    Args:
        tokenizer: None for an engine without text: every piece is empty.
        request: only read.
    """

    __slots__ = ("_detokenizer", "_looks_at_each", "_num_seen", "_shown", "_stops", "request")

    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        self.request = request
        self._detokenizer = None if tokenizer is None else tokenizer.detokenizer()
        self._stops = StopStrings(request.params.stop)
        self._num_seen = len(request.output_token_ids)
        self._looks_at_each = request.is_streamed or bool(request.params.stop)
        self._shown: list[str] = []  # of a request that is not streamed: kept for its end

    def push(self, token_id: int) -> tuple[str, bool]:
        """The text that the newest token brings, and whether a stop string was met.

        Of a request that is not streamed nothing is shown before `close`, and without stop strings nothing is made.
        """
        if self._detokenizer is None or not self._looks_at_each:
            return "", False
        self._num_seen += 1
        text, hit = self._stops.push(self._detokenizer.push(token_id))
        if self.request.is_streamed:
            return text, hit is not None
        self._shown.append(text)
        return "", hit is not None

    def close(self, *, is_stop_token: bool = False, is_cut: bool = False) -> str:
        """The text that is still to be shown, at the end of the request.

        Args:
            is_stop_token: the newest token is no text.
            is_cut: what is held back is lost: a stop string was met, or the request has failed.
        """
        if self._detokenizer is None:
            return ""
        if not self._looks_at_each:
            unseen = self.request.output_token_ids[self._num_seen :]
            text, _ = self._stops.push(self._detokenizer.push_all(unseen[: len(unseen) - is_stop_token]))
            self._shown.append(text)
        if not is_cut:
            text, hit = self._stops.push(self._detokenizer.flush())
            self._shown.append(text if hit is not None else text + self._stops.flush())
        return "".join(self._shown)
