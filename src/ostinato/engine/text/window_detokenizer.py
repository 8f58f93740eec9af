"""Text of a growing list of tokens by decoding short windows of it: right for any tokenizer.

A token is not a piece of text: an emoji may take four, and some tokenizers drop the leading space
of whatever they decode first. So each push decodes a window that begins at an earlier border and
emits what it adds, and holds it back while it ends in an incomplete character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["WindowDetokenizer"]

_INCOMPLETE = "\ufffd"


class _Decoder(Protocol):
    """What is needed of a `Tokenizer`."""

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...


class WindowDetokenizer:
    """A `Detokenizer` for any tokenizer.

    Its pieces join to the full decode exactly for byte-level tokenizers. A byte-fallback one (SentencePiece style)
    rewrites earlier characters when later bytes are invalid; there only the tail of such a run may differ.
    """

    def __init__(self, tokenizer: _Decoder, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        # The window: ids since the border before the last emitted piece. The ids of that piece stay in
        # it as context, so that the new ones are never decoded as if they began a text.
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def push(self, token_id: int) -> str:
        if self._skip_special and token_id in self._tokenizer.special_token_ids:
            return ""  # decode() drops it before anything else, so it never touches the window
        self._window.append(token_id)
        window_text = self._decode(self._window)
        if window_text.endswith(_INCOMPLETE):
            return ""
        if len(window_text) <= len(self._context_text):
            if self._context_text:
                # Ids without text (unknown ones, say) must not make the window grow for ever.
                del self._window[-1]
            return ""
        return self._emit(window_text)

    def flush(self) -> str:
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
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special=self._skip_special)
