"""Both detokenizers: pieces join to the full decode, and no piece ends inside a character."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders

from ostinato.engine.text import ByteLevelDetokenizer, Detokenizer, Tokenizer, WindowDetokenizer, byte_letters
from ostinato.engine.text.byte_level import TokenPieces

Maker = Callable[..., Detokenizer]


def by_look_up(tokenizer: Tokenizer, *, skip_special: bool = True) -> Detokenizer:
    found = tokenizer.detokenizer(skip_special=skip_special)
    assert isinstance(found, ByteLevelDetokenizer)
    return found


def full_decode(tokenizer: Tokenizer, token_ids: list[int], *, skip_special: bool = True) -> str:
    """By the library, whatever `Tokenizer.decode` does."""
    return tokenizer._backend.decode(token_ids, skip_special_tokens=skip_special)


both = pytest.mark.parametrize("make", [by_look_up, WindowDetokenizer])


def pieces_of(make: Maker, tokenizer: Tokenizer, token_ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = make(tokenizer, skip_special=skip_special)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    pieces.append(detokenizer.flush())
    return pieces


@both
@given(text=st.text(max_size=40))
@example(text="<|im_end|>")  # a control token, which Hypothesis reads in our sources: no text unless it is asked for
def test_pieces_of_any_text_join_to_it(make: Maker, byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert "".join(pieces_of(make, byte_level, ids, skip_special=False)) == text
    assert "<|" in text or "".join(pieces_of(make, byte_level, ids)) == text


@both
@given(data=st.data(), skip_special=st.booleans())
def test_pieces_of_any_ids_join_to_the_full_decode(
    make: Maker, byte_level: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    """Random ids: broken UTF-8, control tokens in the middle of characters, ids past the vocabulary."""
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 2), max_size=30))
    joined = "".join(pieces_of(make, byte_level, ids, skip_special=skip_special))
    assert joined == full_decode(byte_level, ids, skip_special=skip_special)


@both
@given(text=st.text(alphabet="aé€😀 \n", max_size=20))
def test_no_piece_shows_a_broken_character(make: Maker, byte_level: Tokenizer, text: str) -> None:
    assert not any("\ufffd" in piece for piece in pieces_of(make, byte_level, byte_level.encode(text)))


@both
def test_an_emoji_of_four_tokens_comes_with_the_last(make: Maker, byte_level: Tokenizer) -> None:
    ids = byte_level.encode("😀")
    assert len(ids) == 4
    assert pieces_of(make, byte_level, ids) == ["", "", "", "😀", ""]


@both
def test_a_broken_end_is_shown_by_the_flush(make: Maker, byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a😀")[:3]
    assert pieces_of(make, byte_level, ids) == ["a", "", "", "\ufffd"]


def test_a_flush_decodes_nothing_where_nothing_is_held_back(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    detokenizer = WindowDetokenizer(byte_level)
    assert "".join(map(detokenizer.push, byte_level.encode("and so on"))) == "and so on"
    monkeypatch.setattr(byte_level, "decode", None)
    assert detokenizer.flush() == ""


@settings(max_examples=300)
@given(data=st.data(), skip_special=st.booleans())
def test_what_was_shown_begins_the_decode_of_every_prefix(
    byte_level: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    """With what is held back it is that prefix's text, and nothing is held back but a character that has begun."""
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 2), max_size=20))
    shown, detokenizer = "", by_look_up(byte_level, skip_special=skip_special)
    for end, token_id in enumerate(ids, 1):
        shown += detokenizer.push(token_id)
        again = by_look_up(byte_level, skip_special=skip_special)
        assert "".join(map(again.push, ids[:end])) == shown
        held = again.flush()
        assert shown + held == full_decode(byte_level, ids[:end], skip_special=skip_special)
        assert held in ("", "\ufffd", "\ufffd" * 2)  # two: of a surrogate, which Python's decoder waits for


@both
@given(data=st.data())
def test_any_bytes_are_replaced_as_the_library_replaces_them(
    make: Maker, byte_level: Tokenizer, data: st.DataObject
) -> None:
    """Overlong forms, surrogates, bytes that begin nothing: one mark for each longest part that begins a character."""
    beginnings = [b"\xed\xa0", b"\xf0\x80", b"\xf0\x9f\x98", b"\xf4\x90", b"\xc0", b"\xff", b"\xe2\x82", b"a", b"\x80"]
    spelled = b"".join(data.draw(st.lists(st.sampled_from(beginnings) | st.binary(max_size=3), max_size=8)))
    letters = byte_letters()
    ids = [i for byte in spelled if (i := byte_level.token_to_id(letters[byte])) is not None]
    assert len(ids) == len(spelled)
    assert "".join(pieces_of(make, byte_level, ids)) == full_decode(byte_level, ids) == spelled.decode(errors="replace")


def test_a_prepared_tokenizer_finds_nothing_any_more(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(byte_level.vocab_size))
    expected = [byte_level._backend.decode([token_id]) for token_id in ids]
    byte_level.prepare()
    byte_level.prepare()  # changes nothing
    monkeypatch.setattr(TokenPieces, "find", lambda *_: pytest.fail("a token was looked for"))
    assert [byte_level.decode([token_id]) for token_id in ids] == expected
    assert byte_level.detokenizer().push(ids[5]) == expected[5]


def test_a_tokenizer_that_is_not_looked_up_has_nothing_to_prepare(sentence_piece: Tokenizer) -> None:
    sentence_piece.prepare()
    assert sentence_piece.decode(sentence_piece.encode("once more")) == "once more"


def test_an_added_token_whose_letters_are_no_bytes_stands_for_itself(make_folder: Callable[..., Path]) -> None:
    folder = make_folder()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("<a tool>", normalized=False), AddedToken("日本", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(folder)
    ids = tokenizer.encode("x<a tool>日本é")
    assert pieces_of(by_look_up, tokenizer, ids) == ["x", "<a tool>", "日本", "", "é", ""]


@pytest.mark.parametrize("decoder", [None, decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])])
def test_only_a_plain_byte_level_decoder_is_looked_up(make_folder: Callable[..., Path], decoder: object) -> None:
    folder = make_folder()
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = decoder
    backend.save(str(folder / "tokenizer.json"))
    assert isinstance(Tokenizer.from_directory(folder).detokenizer(), WindowDetokenizer)


def test_leading_spaces_survive_where_the_decoder_drops_the_first(sentence_piece: Tokenizer) -> None:
    hello, world, space, mark = (sentence_piece.token_to_id(token) for token in ("▁Hello", "▁world", "▁", "!"))
    ids = [i for i in (hello, world, mark, space, world) if i is not None]
    assert len(ids) == 5
    assert pieces_of(Tokenizer.detokenizer, sentence_piece, ids) == ["Hello", " world", "!", " ", " world", ""]


@given(data=st.data())
def test_byte_fallback_pieces_join_to_the_full_decode(sentence_piece: Tokenizer, data: st.DataObject) -> None:
    chunk = st.sampled_from(["▁Hello", "▁world", "▁", "!", "s", "é", "😀"])
    ids: list[int] = []
    for text in data.draw(st.lists(chunk, max_size=12)):
        own = sentence_piece.token_to_id(text)
        by_bytes = [sentence_piece.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
        ids += [i for i in ([own] if own is not None else by_bytes) if i is not None]
    assert "".join(pieces_of(Tokenizer.detokenizer, sentence_piece, ids)) == full_decode(sentence_piece, ids)


def test_ids_without_text_do_not_grow_the_window(byte_level: Tokenizer) -> None:
    detokenizer = WindowDetokenizer(byte_level)
    detokenizer.push(byte_level.encode("a")[0])
    for _ in range(100):
        assert detokenizer.push(byte_level.vocab_size + 7) == ""
    assert len(detokenizer._window) == 1


@given(data=st.data(), skip_special=st.booleans())
def test_a_whole_text_is_what_the_library_decodes(
    byte_level: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size + 2), max_size=30))
    assert byte_level.decode(ids, skip_special=skip_special) == full_decode(byte_level, ids, skip_special=skip_special)


@pytest.mark.parametrize("given", [iter, tuple, np.array], ids=["iterator", "tuple", "array"])
def test_ids_come_in_whatever_holds_them(byte_level: Tokenizer, given: Callable[[list[int]], Any]) -> None:
    ids = byte_level.encode("caf\u00e9 \U0001f600!")
    assert byte_level.decode(given(ids)) == "caf\u00e9 \U0001f600!"


def test_a_negative_id_is_refused_and_no_token_from_the_end(byte_level: Tokenizer) -> None:
    with pytest.raises(OverflowError):
        byte_level.decode([5, -1])
    with pytest.raises(AssertionError):
        by_look_up(byte_level).push(-1)
