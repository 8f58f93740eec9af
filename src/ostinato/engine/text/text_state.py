"""One request's text as its tokens come: detokenised, and held back while a stop string may be beginning.

Joins an incremental detokenizer and the stop strings. Text that nobody reads before the end is made at the end, in one
go. Called by the loop, one object a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.engine.request import Request
from ostinato.engine.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from ostinato.engine.text.detokenizer import Detokenizer
    from ostinato.engine.text.tokenizer import Tokenizer

__all__ = ["TextState"]

_BROKEN = "\ufffd"  # how half a character is shown


class TextState:
    """Turns the tokens of a request into text.

    Args:
        tokenizer: None for an engine without text: every piece is empty.
        request: only read.
    """

    __slots__ = ("_detokenizer", "_has_stops", "_num_before", "_shown", "_stops", "_tokenizer", "request")

    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._has_stops = bool(request.params.stop)
        self._detokenizer: Detokenizer | None = None  # of a request whose text is made at its end, in one go
        if tokenizer is not None and (request.is_streamed or self._has_stops):
            self._detokenizer = tokenizer.detokenizer()
        self._stops = StopStrings(request.params.stop)
        self._num_before = len(request.output_token_ids)  # tokens whose text is none of this
        self._shown: list[str] = []  # of a request that is not streamed: kept for its end

    def push(self, token_id: int) -> tuple[str, bool]:
        """The text that the newest token brings, and whether a stop string was met.

        Of a request that is not streamed nothing is shown before `close`, and without stop strings nothing is made.
        """
        if self._detokenizer is None:
            return "", False
        text = self._detokenizer.push(token_id)
        if not self._has_stops:
            return text, False
        text, hit = self._stops.push(text)
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
        if self._detokenizer is not None:
            if not is_cut:
                text, hit = self._stops.push(self._detokenizer.flush())
                self._shown.append(text if hit is not None else text + self._stops.flush())
            return "".join(self._shown)
        if self._tokenizer is None:
            return ""
        unseen = self.request.output_token_ids[self._num_before :]
        text = self._tokenizer.decode(unseen[: len(unseen) - is_stop_token])
        return text.removesuffix(_BROKEN) if is_cut else text
