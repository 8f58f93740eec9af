"""The made-up tokenizer has a token for every id, of the lengths and kinds that usual ones have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.engine.text import Tokenizer
from ostinato.testing.made_up_tokenizer import write_made_up_tokenizer


def made(folder: Path, vocab_size: int) -> Tokenizer:
    write_made_up_tokenizer(folder, vocab_size)
    return Tokenizer.from_directory(folder)


@pytest.mark.parametrize("vocab_size", [2, 100, 257, 258, 5000])
def test_every_id_of_the_model_is_a_token(tmp_path: Path, vocab_size: int) -> None:
    tokenizer = made(tmp_path, vocab_size)
    assert tokenizer.vocab_size == vocab_size
    assert tokenizer.eos_token_ids == {vocab_size - 1} == tokenizer.special_token_ids
    assert all(tokenizer.token_text(token_id) for token_id in range(vocab_size))


def test_tokens_are_several_bytes_and_a_few_are_parts_of_characters(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, 6257)
    texts = [tokenizer.token_text(token_id) for token_id in range(256, 6256)]
    assert len(set(texts)) > 5900, "each is another token"
    assert 5 < sum(len(text.encode()) for text in texts) / len(texts) < 8
    num_partial = sum("\ufffd" in text for text in texts)
    assert len(texts) / 80 < num_partial < len(texts) / 50
    assert sum(not text.isascii() for text in texts) > len(texts) / 10
    assert 0.4 < sum(text.startswith(" ") for text in texts) / len(texts) < 0.6


def test_text_survives_and_so_does_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, 300)
    assert tokenizer.decode(tokenizer.encode("Ein Maß, 中 🎻")) == "Ein Maß, 中 🎻"
    first = (tmp_path / "tokenizer.json").read_bytes()
    write_made_up_tokenizer(tmp_path, 300)
    assert (tmp_path / "tokenizer.json").read_bytes() == first
