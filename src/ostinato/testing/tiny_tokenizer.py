"""A byte-level tokenizer of `TINY_VOCAB_SIZE` tokens as the files that a checkpoint folder has.

Every byte is a token, so any text encodes and any ids decode; a few merges make tokens longer than a byte,
and three special tokens make a chat template. Plain JSON, written without a tokenizer library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

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
    tokens = [*_byte_letters(), *(merge.replace(" ", "") for merge in _MERGES)]
    added = [
        {"id": _NUM_ORDINARY + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, text in enumerate(_SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": list(_MERGES),
        },
    }


def _byte_letters() -> list[str]:
    """The visible letter that byte-level BPE has for each byte: its own, or the next free one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, num_shifted = [], 0
    for byte in range(256):
        letters.append(chr(byte if byte in visible else 0x100 + num_shifted))
        num_shifted += byte not in visible
    return letters
