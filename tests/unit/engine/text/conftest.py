"""Tiny tokenizers for the text tests, with every byte in the vocabulary so that any text encodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ostinato.engine.text import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_backend() -> tokenizers.Tokenizer:
    """256 byte tokens, a few merges (one of them splits a two-byte character), three control tokens."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("a", "Ã")]
    tokens += ["".join(merge) for merge in merges]
    bpe = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return backend


def sentence_piece_backend() -> tokenizers.Tokenizer:
    """Pieces with a leading-space mark and byte fallback; decoding drops the first space, as Llama 2's does."""
    tokens = ["<unk>", "▁Hello", "▁world", "▁", "!", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


FolderMaker = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> FolderMaker:
    """Write a checkpoint folder: tokenizer.json and the JSON files given by name (dots as underscores)."""

    def make(**files: Any) -> Path:
        byte_level_backend().save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return make


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("byte_level")
    byte_level_backend().save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Tokenizer.from_directory(folder)


@pytest.fixture(scope="session")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("sentence_piece")
    sentence_piece_backend().save(str(folder / "tokenizer.json"))
    return Tokenizer.from_directory(folder)


@pytest.fixture
def chat_template_text() -> str:
    return CHAT_TEMPLATE
