"""Tokenizers built from GGUF metadata: how text is split, which tokens are special, what ends a text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from ostinato.engine.weights.gguf_import.tokenizer import build_tokenizer, generation_config, tokenizer_config
from ostinato.errors import CheckpointError


def metadata_with(
    *, pre: str = "smollm", merges: tuple[str, ...] = ("1 2", "Ġ 1", "a b"), **more: Any
) -> dict[str, Any]:
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*controls, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    tokens.append("<tool>")
    types = [3, 3, 3] + [1] * (len(tokens) - 4) + [4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def pieces(pre: str, text: str, **more: Any) -> list[str]:
    return build_tokenizer(metadata_with(pre=pre, **more)).encode(text).tokens


SMOLLM = build_tokenizer(metadata_with())


@given(text=st.text(max_size=60))
def test_any_text_round_trips(text: str) -> None:
    assert SMOLLM.decode(SMOLLM.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["  two  spaces\n\n\ttab ", "x = [i**2 for i in range(10)]\n", "日本語 😀 naïve", "3.14159"]
)
def test_whitespace_code_and_unicode_round_trip(text: str) -> None:
    assert SMOLLM.decode(SMOLLM.encode(text).ids) == text


def test_smollm_takes_digits_one_by_one() -> None:
    # "12" and " 1" are in the vocabulary; only the split keeps them apart.
    assert pieces("smollm", " 12ab") == ["Ġ", "1", "2", "ab"]
    assert pieces("gpt-2", " 12ab") == ["Ġ", "12", "ab"]
    assert pieces("gpt-2", " 1") == ["Ġ1"] and pieces("smollm", " 1") == ["Ġ", "1"]


def test_qwen_splits_digits_and_normalises() -> None:
    assert pieces("qwen2", "12") == ["1", "2"]
    assert pieces("qwen2", "e\u0301") == pieces("qwen2", "\u00e9")
    assert pieces("smollm", "e\u0301") != pieces("smollm", "\u00e9")


def test_llama3_groups_up_to_three_digits_and_takes_whole_words() -> None:
    # Without a way to merge up to it, "123" is only found because words of the vocabulary are taken whole.
    metadata = metadata_with(pre="llama-bpe")
    metadata["tokenizer.ggml.tokens"].append("123")
    metadata["tokenizer.ggml.token_type"].append(1)
    assert build_tokenizer(metadata).encode("1234").tokens == ["123", "4"]


def test_control_tokens_are_single_ids_inside_text() -> None:
    encoded = SMOLLM.encode("<|im_start|>ab<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "ab", "<|im_end|>"] and encoded.ids[0] == 1 and encoded.ids[-1] == 2
    assert SMOLLM.decode(encoded.ids) == "ab"


def test_user_defined_tokens_are_whole_but_shown() -> None:
    encoded = SMOLLM.encode("a<tool>")
    assert encoded.tokens == ["a", "<tool>"]
    assert SMOLLM.decode(encoded.ids) == "a<tool>"


def test_a_begin_token_is_added_only_when_the_file_says_so() -> None:
    assert pieces("smollm", "ab") == ["ab"]
    assert pieces("smollm", "ab", add_bos_token=True) == ["<|im_start|>", "ab"]


def test_tokenizer_config_names_roles_and_template() -> None:
    metadata = {**metadata_with(padding_token_id=0), "tokenizer.chat_template": "{{ messages }}"}
    config = tokenizer_config(metadata)
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert config["chat_template"] == "{{ messages }}" and "unk_token" not in config


def test_every_end_token_ends_a_generation() -> None:
    assert generation_config(metadata_with(eot_token_id=9)) == {"eos_token_id": [0, 2, 9]}


def test_an_end_token_text_that_is_no_control_token_does_not() -> None:
    metadata = metadata_with()
    metadata["tokenizer.ggml.token_type"][0] = 1
    assert generation_config(metadata) == {"eos_token_id": [2]}


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_missing_list_is_named(key: str) -> None:
    metadata = metadata_with()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key}"):
        build_tokenizer(metadata)


def test_a_token_listed_twice_is_refused() -> None:
    metadata = metadata_with()
    metadata["tokenizer.ggml.tokens"][5] = metadata["tokenizer.ggml.tokens"][4]
    with pytest.raises(CheckpointError, match="twice"):
        build_tokenizer(metadata)


def test_a_merge_outside_the_vocabulary_is_refused() -> None:
    metadata = metadata_with()
    metadata["tokenizer.ggml.merges"].append("q zz")
    with pytest.raises(CheckpointError, match="merges do not fit"):
        build_tokenizer(metadata)
