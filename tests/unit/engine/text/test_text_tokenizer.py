"""The tokenizer of a folder: round trips, special tokens in all their spellings, bad files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.engine.text import Tokenizer
from ostinato.errors import CheckpointError


@given(text=st.text(max_size=60))
@example(text="<|im_end|>")  # a control token, which Hypothesis reads in our sources: no text unless it is asked for
def test_any_text_round_trips(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert byte_level.decode(ids, skip_special=False) == text
    assert "<|" in text or byte_level.decode(ids) == text


def test_special_tokens_are_single_ids_and_left_out_of_text(byte_level: Tokenizer) -> None:
    end = byte_level.token_to_id("<|im_end|>")
    ids = byte_level.encode("hello<|im_end|>")
    assert ids[-1] == end and len(ids) == 2
    assert byte_level.decode(ids) == "hello"
    assert byte_level.decode(ids, skip_special=False) == "hello<|im_end|>"
    assert byte_level.token_text(ids[-1]) == "<|im_end|>"
    assert end in byte_level.special_token_ids


def test_user_defined_tokens_are_not_special(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<tool>")
    assert len(ids) == 1
    assert byte_level.decode(ids) == "<tool>"


def test_vocab_size_counts_added_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == 256 + 6 + 4


@pytest.mark.parametrize("spelling", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}])
def test_eos_token_as_text_or_object(make_folder, spelling) -> None:
    tokenizer = Tokenizer.from_directory(make_folder(tokenizer_config={"eos_token": spelling}))
    assert tokenizer.eos_token_ids == {tokenizer.token_to_id("<|im_end|>")}


@pytest.mark.parametrize(("value", "expected"), [(5, {5}), ([5, 7], {5, 7}), (None, set())])
def test_eos_ids_of_generation_config(make_folder, value, expected) -> None:
    tokenizer = Tokenizer.from_directory(make_folder(generation_config={"eos_token_id": value}))
    assert tokenizer.eos_token_ids == expected


def test_eos_ids_are_the_union_of_all_files(make_folder) -> None:
    folder = make_folder(
        config={"eos_token_id": 3}, generation_config={"eos_token_id": [4]}, special_tokens_map={"eos_token": "!"}
    )
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer.eos_token_ids == {3, 4, tokenizer.token_to_id("!")}


def test_bos_comes_from_the_token_or_the_config(make_folder) -> None:
    assert Tokenizer.from_directory(make_folder(config={"bos_token_id": 9})).bos_token_id == 9
    tokenizer = Tokenizer.from_directory(make_folder(tokenizer_config={"bos_token": "<|im_start|>"}))
    assert tokenizer.bos_token_id == tokenizer.token_to_id("<|im_start|>")


def test_saved_truncation_does_not_cut_prompts(tmp_path: Path, byte_level: Tokenizer) -> None:
    backend = byte_level._backend.from_str(byte_level._backend.to_str())
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_directory(tmp_path).encode("xyz") == byte_level.encode("xyz")


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*Fix: copy"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_corrupt_file_is_named(make_folder, file: str) -> None:
    folder = make_folder()
    (folder / file).write_text('{"half": ', encoding="utf-8")
    with pytest.raises(CheckpointError, match=file):
        Tokenizer.from_directory(folder)


def test_a_json_file_that_is_no_object_is_named(make_folder) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json holds a JSON list"):
        Tokenizer.from_directory(make_folder(config=[1]))
