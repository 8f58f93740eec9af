"""GGUF metadata to tokenizer.json, tokenizer_config.json and generation_config.json.

Builds byte-level BPE tokenizers, the kind that GGUF calls ``gpt2``. How text is split before BPE is
not stored in the file, only its name; the names known here are those of the families that the engine
runs. Called by the converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ostinato.engine.text.optional_import import require
from ostinato.errors import CheckpointError, UnsupportedArchitectureError

if TYPE_CHECKING:
    import tokenizers

_KEYS = "tokenizer.ggml."
_ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
# Control tokens that end a turn or a document whatever the file says of its one end token.
_END_TEXTS = {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>"}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLIT_PATTERNS = {
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
}
_DIGIT_SPLITTERS = {"smollm"}
_PLAIN = {"gpt-2"}


class _TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``, as the GGUF specification numbers them."""

    CONTROL = 3
    USER_DEFINED = 4


def build_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Build the tokenizer that the metadata describes; its ids are the file's token order.

    Raises:
        UnsupportedArchitectureError: not byte-level BPE, or split in a way not known here.
        CheckpointError: tokens or merges are missing or contradict each other.
    """
    library: Any = require("tokenizers", "build a tokenizer")
    kind, split = str(metadata.get(_KEYS + "model")), str(metadata.get(_KEYS + "pre"))
    if kind != "gpt2":
        raise UnsupportedArchitectureError(
            f"GGUF tokenizers of kind {kind!r} cannot be converted",
            fix="use the model's safetensors checkpoint, which has a tokenizer.json",
        )
    tokens = _required_list(metadata, "tokens")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError("the GGUF file lists a token twice", fix="take another GGUF file of this model")
    merges = [tuple(merge.split(" ", 1)) for merge in _required_list(metadata, "merges")]
    try:
        # Llama 3 takes a word that is in the vocabulary as it is, without merging up to it.
        bpe = library.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == "llama-bpe")
    except Exception as error:  # the library raises bare Exception when a merge is not in the vocabulary
        raise CheckpointError(
            f"the GGUF file's merges do not fit its tokens: {error}", fix="take another GGUF file of this model"
        ) from error
    result: tokenizers.Tokenizer = library.Tokenizer(bpe)
    result.pre_tokenizer = _pre_tokenizer(library.pre_tokenizers, split)
    if split == "qwen2":
        result.normalizer = library.normalizers.NFC()
    result.decoder = library.decoders.ByteLevel()
    _add_special_tokens(library, result, tokens, metadata.get(_KEYS + "token_type") or [])
    if metadata.get(_KEYS + "add_bos_token"):
        bos_id = int(metadata[_KEYS + "bos_token_id"])
        bos = tokens[bos_id]
        result.post_processor = library.processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, bos_id)]
        )
    return result


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of tokenizer_config.json: special tokens by role, and the chat template."""
    tokens = _required_list(metadata, "tokens")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, key in _ROLES.items():
        token_id = metadata.get(f"{_KEYS}{key}_token_id")
        if token_id is not None:
            config[role] = tokens[int(token_id)]
    template = metadata.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of generation_config.json: every id that ends a generation."""
    tokens = _required_list(metadata, "tokens")
    types = metadata.get(_KEYS + "token_type") or []
    ends = {int(metadata[key]) for role in ("eos", "eot", "eom") if (key := f"{_KEYS}{role}_token_id") in metadata}
    ends |= {
        token_id
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == _TokenType.CONTROL and token in _END_TEXTS
    }
    return {"eos_token_id": sorted(ends)}


def _required_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(_KEYS + key)
    if not isinstance(value, list) or not value:
        raise CheckpointError(
            f"the GGUF metadata has no {_KEYS + key!r}", fix="take a GGUF file that holds its tokenizer"
        )
    return value


def _pre_tokenizer(library: Any, split: str) -> Any:
    """The splitter that files call ``split``. The byte map always comes last."""
    if split in _PLAIN:
        return library.ByteLevel(add_prefix_space=False, use_regex=True)
    if split in _DIGIT_SPLITTERS:
        return library.Sequence(
            [library.Digits(individual_digits=True), library.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if split in _SPLIT_PATTERNS:
        regex = require("tokenizers", "build a tokenizer").Regex(_SPLIT_PATTERNS[split])
        return library.Sequence(
            [
                library.Split(regex, behavior="isolated"),
                library.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    known = sorted(_PLAIN | _DIGIT_SPLITTERS | set(_SPLIT_PATTERNS))
    raise UnsupportedArchitectureError(
        f"GGUF tokenizers that split text by {split!r} cannot be converted",
        fix=f"use the model's safetensors checkpoint; known here: {', '.join(known)}",
    )


def _add_special_tokens(library: Any, result: Any, tokens: list[str], types: list[int]) -> None:
    """Mark control and user-defined tokens, so that they are matched whole in any text."""
    for kind, is_special in ((_TokenType.CONTROL, True), (_TokenType.USER_DEFINED, False)):
        chosen = [token for token, own in zip(tokens, types, strict=False) if own == kind]
        result.add_tokens([library.AddedToken(token, normalized=False, special=is_special) for token in chosen])
