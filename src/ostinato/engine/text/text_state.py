"""One request's text as its tokens come: detokenised, and held back while a stop string may be beginning.

Joins the incremental detokenizer and the stop strings. Called by the loop, one object a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostinato.engine.text.detokenizer import IncrementalDetokenizer
from ostinato.engine.text.stop_strings import StopStrings

if TYPE_CHECKING:
    from ostinato.engine.text.tokenizer import Tokenizer

__all__ = ["TextState"]


class TextState:
    """Turns tokens into text.

    Args:
        tokenizer: None for an engine without text: every piece is empty.
        stop: strings that end the request.
    """

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str]) -> None:
        self._detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer)
        self._stops = StopStrings(tuple(stop))

    def push(self, token_id: int) -> tuple[str, bool]:
        """New text, and whether a stop string was met."""
        if self._detokenizer is None:
            return "", False
        text, hit = self._stops.push(self._detokenizer.push(token_id))
        return text, hit is not None

    def flush(self) -> str:
        """What was held back, at the end of a request that no stop string has ended."""
        if self._detokenizer is None:
            return ""
        text, hit = self._stops.push(self._detokenizer.flush())
        return text if hit is not None else text + self._stops.flush()
