"""Byte-level BPE as the JSON that a ``tokenizer.json`` holds, written without a tokenizer library.

Knows the format alone; which tokens there are is said by `tiny_tokenizer` and `made_up_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["byte_level_json"]


def byte_level_json(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str]) -> dict[str, Any]:
    """The document of a tokenizer; ids go by place, special tokens last.

    Args:
        tokens: spelled in `byte_letters`, each once.
        merges: ``"a b"``, of tokens; a token that no merge makes decodes, and no text encodes to it.
        special: texts of the tokens that decoding leaves out.
    """
    added = [
        {"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, text in enumerate(special)
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
            "merges": list(merges),
        },
    }
