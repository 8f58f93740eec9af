"""Text of the tokens of a byte-level tokenizer, looked up instead of decoded.

A byte-level vocabulary (GPT-2's, and those of Llama 3, Qwen and SmolLM2) spells each token in 256 visible letters, one
a byte, and its decoder joins those bytes whatever stands beside them. So a token's bytes are found once, and text costs
a look-up a token. `Tokenizer` says for which tokenizers this holds; tests hold it against the library's decoder.

Bytes are kept as text in which a byte that is no part of a whole character is a lone surrogate (PEP 383), as no
character is: nearly all pieces are then joined, or passed on, as they are.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Collection, Sequence
from functools import cache

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


class TokenPieces(dict[int, str]):
    """Token id -> its bytes, as text in which bytes that are no whole character are lone surrogates.

    Filled as tokens are met; shared by all requests and threads, of which two may find the same piece twice.

    Args:
        id_to_token: how the vocabulary spells a token; None for an unknown id, which has no text.
        left_out: ids that have no text either.
    """

    def __init__(self, id_to_token: Callable[[int], str | None], left_out: Collection[int] = ()) -> None:
        super().__init__(dict.fromkeys(left_out, ""))
        self._id_to_token = id_to_token
        self._bytes = {letter: byte for byte, letter in enumerate(byte_letters())}

    def __missing__(self, token_id: int) -> str:
        token = self._id_to_token(token_id) or ""
        try:
            spelled = bytes([self._bytes[letter] for letter in token])
        except KeyError:  # an added token with letters that stand for no byte, a space say, stands for itself
            spelled = token.encode()
        piece = self[token_id] = spelled.decode("utf-8", "surrogateescape")
        return piece


class ByteLevelDetokenizer:
    """A `Detokenizer` for byte-level tokenizers. What it holds back are the first bytes of one character."""

    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._held = b""

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if not self._held and piece.isascii():
            return piece
        return self._add(piece)

    def push_all(self, token_ids: Sequence[int]) -> str:
        return self._add("".join(map(self._pieces.__getitem__, token_ids)))

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")

    def _add(self, piece: str) -> str:
        spelled = self._held + piece.encode("utf-8", "surrogateescape")
        text, num_used = utf_8_decode(spelled, "replace", False)  # False: a character that has only begun is not used
        self._held = spelled[num_used:]
        return text
