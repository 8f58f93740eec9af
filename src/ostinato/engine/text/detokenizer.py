"""Text of a growing list of tokens, one piece at a time.

A token is not a piece of text: an emoji may take four, and some tokenizers drop the leading space
of whatever they decode first. So each push decodes a short window that begins at an earlier border
and emits what it adds, and holds it back while it ends in an incomplete character. Called by the
loop, one object a request. Leaves stop strings to `stop_strings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.engine.text.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"


class IncrementalDetokenizer:
    """All pushes and the flush, joined, equal ``tokenizer.decode`` of all ids.

    That holds exactly for byte-level tokenizers. A byte-fallback one (SentencePiece style) rewrites
    earlier characters when later bytes are invalid; there only the tail of such a run may differ.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pieces: list[str] = []
        # The window: ids since the border before the last emitted piece. The ids of that piece stay in
        # it as context, so that the new ones are never decoded as if they began a text.
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""

    @property
    def text(self) -> str:
        """Everything emitted so far."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Add one token; return the text that is now certain, often ``""``."""
        return self.push_all((token_id,))

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Add tokens, decoded in one go; return the text that is now certain, often ``""``."""
        if self._skip_special:  # decode() drops these ids before anything else, so they never touch the window
            special = self._tokenizer.special_token_ids
            token_ids = [token_id for token_id in token_ids if token_id not in special]
        if not token_ids:
            return ""
        self._window += token_ids
        window_text = self._decode(self._window)
        if window_text.endswith(_INCOMPLETE):
            return ""
        if len(window_text) <= len(self._context_text):
            if self._context_text:
                # Ids without text (unknown ones, say) must not make the window grow for ever.
                del self._window[-len(token_ids) :]
            return ""
        return self._emit(window_text)

    def flush(self) -> str:
        """Return what is held back, as ``decode`` shows it: call once, when no token will follow."""
        if len(self._window) == self._num_context:
            return ""
        window_text = self._decode(self._window)
        if len(window_text) <= len(self._context_text):
            return ""
        return self._emit(window_text)

    def _emit(self, window_text: str) -> str:
        piece = window_text[len(self._context_text) :]
        self._window = self._window[self._num_context :]
        self._num_context = len(self._window)
        is_single = self._num_context == 1  # and not special, or special ids are shown
        self._context_text = self._tokenizer.token_text(self._window[0]) if is_single else self._decode(self._window)
        self._pieces.append(piece)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special=self._skip_special)
