"""Text of the tokens of a byte-level tokenizer, looked up instead of decoded.

A byte-level vocabulary (GPT-2's, and those of Llama 3, Qwen and SmolLM2) spells each token in 256 visible letters, one
a byte, and its decoder joins those bytes whatever stands beside them. So a token's bytes are found once, and text costs
a look-up a token. `Tokenizer` says for which tokenizers this holds; tests hold it against the library's decoder.

Bytes are kept as text in which a byte that is no part of a whole character is a lone surrogate (PEP 383), as no
character is: nearly all pieces are then joined, or passed on, as they are.
"""

from __future__ import annotations

from codecs import charmap_build, charmap_encode, utf_8_decode
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

__all__ = ["ByteLevelDetokenizer", "TokenPieces", "byte_letters"]


@cache
def byte_letters() -> tuple[str, ...]:
    """The visible letter that byte-level BPE has for each byte: its own, or the next free one from U+0100 on.

    Source: ``bytes_to_unicode`` of GPT-2 (https://github.com/openai/gpt-2, ``src/encoder.py``).
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, num_shifted = [], 0
    for byte in range(256):
        letters.append(chr(byte if byte in visible else 0x100 + num_shifted))
        num_shifted += byte not in visible
    return tuple(letters)


class TokenPieces:
    """The bytes of each token, as text in which bytes that are no whole character are lone surrogates.

    Found when a token is met first, or all at once; shared by all requests and threads, of which two may find the same.

    Attributes:
        known: by token id; None where nobody has asked yet. To be read; `find` writes.

    Args:
        id_to_token: how the vocabulary spells a token; None for an unknown id, which has no text.
        num_tokens: that are kept; ids from there on are right too, and found again each time.
        left_out: ids that have no text either.
    """

    __slots__ = ("_id_to_token", "_left_out", "_letters_to_bytes", "known")

    def __init__(
        self, id_to_token: Callable[[int], str | None], num_tokens: int, left_out: Collection[int] = ()
    ) -> None:
        self._id_to_token = id_to_token
        self._left_out = left_out
        self._letters_to_bytes: Any = charmap_build("".join(byte_letters()))
        self.known: list[str | None] = [None] * num_tokens

    def find(self, token_id: int) -> str:
        """The piece of any token."""
        token = "" if token_id in self._left_out else self._id_to_token(token_id) or ""
        try:
            spelled: bytes = charmap_encode(token, "strict", self._letters_to_bytes)[0]
        except UnicodeEncodeError:  # an added token with a letter that stands for no byte, a space say, is its own text
            spelled = token.encode()
        piece = spelled.decode("utf-8", "surrogateescape")
        if token_id < len(self.known):
            self.known[token_id] = piece
        return piece

    def find_all(self) -> None:
        """All that are kept, so that no answer finds them: 0.1 s for 128,256 tokens."""
        for token_id, piece in enumerate(self.known):
            if piece is None:
                self.find(token_id)

    def text(self, token_ids: Sequence[int]) -> str:
        """Text of ``token_ids``, none of them negative; bytes that are no whole character become U+FFFD."""
        known = self.known
        try:
            joined = "".join([known[token_id] for token_id in token_ids])  # type: ignore[misc]
        except (TypeError, IndexError):  # a token that is met first
            joined = "".join([self._piece(token_id) for token_id in token_ids])
        return joined if joined.isascii() else _as_bytes(joined).decode("utf-8", "replace")

    def _piece(self, token_id: int) -> str:
        piece = self.known[token_id] if token_id < len(self.known) else None
        return self.find(token_id) if piece is None else piece


class ByteLevelDetokenizer:
    """A `Detokenizer` for byte-level tokenizers. What it holds back are the first bytes of one character."""

    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._held = b""

    def push(self, token_id: int) -> str:
        assert token_id >= 0, "a place from the end would be another token's"
        try:
            piece = self._pieces.known[token_id]
        except IndexError:
            piece = None
        if piece is None:
            piece = self._pieces.find(token_id)
        if not self._held and piece.isascii():
            return piece
        spelled = self._held + _as_bytes(piece)
        text, num_used = utf_8_decode(spelled, "replace", False)  # False: a character that has only begun is not used
        self._held = spelled[num_used:]
        return text

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def _as_bytes(piece: str) -> bytes:
    return piece.encode("utf-8", "surrogateescape")
