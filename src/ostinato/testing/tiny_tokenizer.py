"""A byte-level tokenizer of `TINY_VOCAB_SIZE` tokens as the files that a checkpoint folder has.

Every byte is a token, so any text encodes and any ids decode; a few merges make tokens longer than a byte,
and three special tokens make a chat template. Plain JSON, written without a tokenizer library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ostinato.engine.text import byte_letters
from ostinato.testing.byte_level import byte_level_json

__all__ = ["TINY_EOS_ID", "TINY_VOCAB_SIZE", "write_tiny_tokenizer"]

_MERGES: Final = ("t h", "th e", "i n", "e r", "a n", "o u", "Ġ the", "Ġ t", "Ġ a", "Ġ i", "Ġ w", "an d", "in g")
_SPECIAL: Final = ("<|end|>", "<|start|>", "<|pad|>")
_NUM_ORDINARY: Final = 256 + len(_MERGES)

TINY_VOCAB_SIZE: Final = _NUM_ORDINARY + len(_SPECIAL)
"""All tokens, special ones included: 272."""
TINY_EOS_ID: Final = _NUM_ORDINARY
"""The token that ends a turn and a generation."""

_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_tokenizer(directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into an existing folder."""
    config = {"eos_token": _SPECIAL[0], "pad_token": _SPECIAL[2], "chat_template": _CHAT_TEMPLATE}
    for name, content in (("tokenizer.json", _tokenizer_json()), ("tokenizer_config.json", config)):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _tokenizer_json() -> dict[str, Any]:
    tokens = [*byte_letters(), *(merge.replace(" ", "") for merge in _MERGES)]
    return byte_level_json(tokens, _MERGES, _SPECIAL)
