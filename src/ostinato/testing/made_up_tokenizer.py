"""A made-up byte-level tokenizer of any vocabulary size, for models that have weights made up too.

Its text means nothing and costs what a usual tokenizer's does: a token is some letters, often with a space before them,
some have letters beyond ASCII, and a few are parts of characters, whose text waits for the next token. Called by
benchmarks of models without tokenizer files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

from ostinato.engine.text import byte_letters
from ostinato.testing.byte_level import byte_level_json

__all__ = ["write_made_up_tokenizer"]

_END: Final = "<|end|>"
_MOST_LETTERS: Final = 9  # 5.5 on average, with the space: about what published vocabularies of 128k and 152k have
_WIDE: Final = "äéößżçñøбжяλπあ中한"
_WIDE_EVERY: Final = 8
_PARTIAL_EVERY: Final = 64  # as rare as in such a vocabulary; the bytes from 0x80 on are such tokens as well


def write_made_up_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into an existing folder; always the same for one size.

    Args:
        directory: where to.
        vocab_size: of the model, so that each of its ids is a token: every byte, made-up ones, and last an end token.
            A model of fewer than 257 has not all bytes: what it says decodes, and not every text encodes.
    """
    tokens = [*byte_letters(), *_made_up(max(0, vocab_size - 257))][: vocab_size - 1]
    document = byte_level_json(tokens, [], [_END])
    for name, content in (("tokenizer.json", document), ("tokenizer_config.json", {"eos_token": _END})):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _made_up(num: int) -> list[str]:
    """``num`` tokens of more than one byte, each once."""
    letters, rng = byte_letters(), random.Random(0)
    found: dict[str, None] = {}
    while len(found) < num:
        text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, _MOST_LETTERS)))
        place = len(found)
        if place % _WIDE_EVERY == 0 or place % _PARTIAL_EVERY == 1:
            text += rng.choice(_WIDE)
        spelled = (" " * rng.randint(0, 1) + text).encode()
        if place % _PARTIAL_EVERY == 1:
            spelled = spelled[:-1]  # the last character is not whole
        found["".join(letters[byte] for byte in spelled)] = None
    return list(found)
