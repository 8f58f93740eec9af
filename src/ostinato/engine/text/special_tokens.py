"""Which tokens are special: their texts and the ids that end a generation.

Checkpoints say this in up to five files with several spellings; this is the one place that knows
them all. Called by the tokenizer. Leaves out the vocabulary itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.engine.text.json_file import read_json_object_if_present

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """What a folder says of its special tokens.

    texts: role (``"bos_token"``...) to token text, for the roles that are set.
    eos_token_ids: every id that ends a generation.
    bos_token_id: id of the begin-of-text token, when there is one.
    """

    texts: dict[str, str]
    eos_token_ids: frozenset[int]
    bos_token_id: int | None


def read_special_tokens(directory: Path, token_to_id: Callable[[str], int | None]) -> SpecialTokens:
    """Merge what the files of ``directory`` say.

    End ids are the union of generation_config.json, config.json and the tokenizer's own end token:
    chat models often list more of them in one file than in another, and missing one means text that
    never stops.
    """
    tokenizer_config = read_json_object_if_present(directory / "tokenizer_config.json")
    token_map = read_json_object_if_present(directory / "special_tokens_map.json")
    texts: dict[str, str] = {}
    for role in _ROLES:
        text = _token_text(tokenizer_config.get(role)) or _token_text(token_map.get(role))
        if text is not None:
            texts[role] = text

    eos: set[int] = set()
    bos: int | None = None
    for file in ("generation_config.json", "config.json"):
        config = read_json_object_if_present(directory / file)
        eos.update(_ids(config.get("eos_token_id")))
        if bos is None:
            bos = next(iter(_ids(config.get("bos_token_id"))), None)
    if "eos_token" in texts:
        eos.update(_ids(token_to_id(texts["eos_token"])))
    if "bos_token" in texts:
        own_bos = token_to_id(texts["bos_token"])
        bos = bos if own_bos is None else own_bos
    return SpecialTokens(texts=texts, eos_token_ids=frozenset(eos), bos_token_id=bos)


def _token_text(value: Any) -> str | None:
    """A token is written as its text or as an object with a ``content`` key."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any) -> list[int]:
    """Ids are written as nothing, one number or a list."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    return []
