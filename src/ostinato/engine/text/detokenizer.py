"""What a detokenizer is: the text of a growing list of tokens, one piece at a time.

There are two. Where a token stands for the same bytes wherever it stands, `byte_level` looks them up; all other
tokenizers are asked for the text of a window of tokens (`window_detokenizer`). `Tokenizer.detokenizer` makes the one
that suits. Called by the loop, one object a request. Both leave stop strings to `stop_strings`.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Detokenizer"]


class Detokenizer(Protocol):
    """All pushes and the flush, joined, equal `Tokenizer.decode` of all ids."""

    def push(self, token_id: int) -> str:
        """Add one token; return the text that is now certain, often ``""``: a character may take four tokens."""
        ...

    def flush(self) -> str:
        """Return what is held back, as ``decode`` shows it: call once, when no token will follow."""
        ...
