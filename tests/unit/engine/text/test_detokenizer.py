"""The incremental detokenizer: pieces join to the full decode, and no piece ends inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.text import IncrementalDetokenizer, Tokenizer


def pieces_of(tokenizer: Tokenizer, token_ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    pieces.append(detokenizer.flush())
    assert detokenizer.text == "".join(pieces)
    return pieces


@given(text=st.text(max_size=40))
def test_pieces_of_any_text_join_to_it(byte_level: Tokenizer, text: str) -> None:
    assert "".join(pieces_of(byte_level, byte_level.encode(text))) == text


@given(data=st.data(), skip_special=st.booleans())
def test_pieces_of_any_ids_join_to_the_full_decode(
    byte_level: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    """Random ids: broken UTF-8, control tokens in the middle of characters, ids past the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 2), max_size=30))
    joined = "".join(pieces_of(byte_level, ids, skip_special=skip_special))
    assert joined == byte_level.decode(ids, skip_special=skip_special)


@given(text=st.text(alphabet="aé€😀 \n", max_size=20))
def test_no_piece_shows_a_broken_character(byte_level: Tokenizer, text: str) -> None:
    assert not any("\ufffd" in piece for piece in pieces_of(byte_level, byte_level.encode(text)))


def test_an_emoji_of_four_tokens_comes_with_the_last(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("😀")
    assert len(ids) == 4
    assert pieces_of(byte_level, ids) == ["", "", "", "😀", ""]


def test_a_broken_end_is_shown_by_the_flush(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a😀")[:3]
    assert pieces_of(byte_level, ids) == ["a", "", "", "\ufffd"]


def test_a_flush_decodes_nothing_where_nothing_is_held_back(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    detokenizer = IncrementalDetokenizer(byte_level)
    assert detokenizer.push_all(byte_level.encode("and so on")) == "and so on"
    monkeypatch.setattr(byte_level, "decode", None)
    assert detokenizer.flush() == ""


def test_leading_spaces_survive_where_the_decoder_drops_the_first(sentence_piece: Tokenizer) -> None:
    hello, world, space, mark = (sentence_piece.token_to_id(token) for token in ("▁Hello", "▁world", "▁", "!"))
    ids = [i for i in (hello, world, mark, space, world) if i is not None]
    assert len(ids) == 5
    assert pieces_of(sentence_piece, ids) == ["Hello", " world", "!", " ", " world", ""]


@given(data=st.data())
def test_byte_fallback_pieces_join_to_the_full_decode(sentence_piece: Tokenizer, data: st.DataObject) -> None:
    chunk = st.sampled_from(["▁Hello", "▁world", "▁", "!", "s", "é", "😀"])
    ids: list[int] = []
    for text in data.draw(st.lists(chunk, max_size=12)):
        own = sentence_piece.token_to_id(text)
        by_bytes = [sentence_piece.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
        ids += [i for i in ([own] if own is not None else by_bytes) if i is not None]
    assert "".join(pieces_of(sentence_piece, ids)) == sentence_piece.decode(ids)


def test_ids_without_text_do_not_grow_the_window(byte_level: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(byte_level)
    detokenizer.push(byte_level.encode("a")[0])
    for _ in range(100):
        assert detokenizer.push(byte_level.vocab_size + 7) == ""
    assert len(detokenizer._window) == 1


@given(data=st.data())
def test_tokens_may_come_many_at_a_time(byte_level: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 2), max_size=30))
    detokenizer, text, left = IncrementalDetokenizer(byte_level), "", list(ids)
    while left:
        num = data.draw(st.integers(1, len(left)))
        text += detokenizer.push_all(left[:num])
        del left[:num]
    assert text + detokenizer.flush() == byte_level.decode(ids)
    assert detokenizer.push_all([]) == ""
