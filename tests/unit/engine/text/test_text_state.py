"""Text of one request: a stream's pieces and a whole answer are the same text, with stop strings and without."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.request import Request, SamplingParams
from ostinato.engine.text import TextState, Tokenizer


def request_of(*, is_streamed: bool = True, **params: Any) -> Request:
    return Request(request_id="a", prompt_token_ids=[1], params=SamplingParams(**params), is_streamed=is_streamed)


def text_of(tokenizer: Tokenizer, ids: list[int], *, is_streamed: bool, stop: tuple[str, ...] = ()) -> str:
    """As the loop does it: token by token, to the first stop string."""
    request = request_of(is_streamed=is_streamed, stop=stop)
    state, shown = TextState(tokenizer, request), ""
    for token_id in ids:
        request.output_token_ids.append(token_id)
        piece, has_met_stop = state.push(token_id)
        assert is_streamed or not piece
        shown += piece
        if has_met_stop:
            return shown + state.close(is_cut=True)
    return shown + state.close()


any_ids = st.lists(st.integers(0, 270), max_size=30)  # past the end of both vocabularies


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
@given(ids=any_ids)
def test_a_whole_answer_is_the_full_decode(kind: str, request: pytest.FixtureRequest, ids: list[int]) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    expected = tokenizer._backend.decode(ids)
    assert text_of(tokenizer, ids, is_streamed=False) == expected
    if kind == "byte_level":  # of the other one, windows may show broken bytes otherwise
        assert text_of(tokenizer, ids, is_streamed=True) == expected


@given(ids=any_ids, stop=st.lists(st.sampled_from(["a", "he", "hello", "\ufffd", "é", "l"]), min_size=1, max_size=3))
def test_a_stop_string_cuts_the_text_of_the_shortest_prefix_that_has_it(
    byte_level: Tokenizer, ids: list[int], stop: list[str]
) -> None:
    """Held against full decodes; half a character at the end is not looked at, as more of it may come."""
    expected = byte_level._backend.decode(ids)
    for end in range(len(ids) + 1):
        text = byte_level._backend.decode(ids[:end])
        if end < len(ids):
            text = _without_begun(byte_level, ids[:end])
        ends = [(at + len(one), at) for one in stop if (at := text.find(one)) >= 0]
        if ends:
            expected = text[: min(ends)[1]]
            break
    for is_streamed in (True, False):
        assert text_of(byte_level, ids, is_streamed=is_streamed, stop=tuple(stop)) == expected


def _without_begun(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Text of ``ids`` less a character at its end that later tokens may complete: what a continuation keeps of it."""
    text = tokenizer._backend.decode(ids)
    for more in ("\x80", "\xbf"):  # bytes that go on with a character, and none that begin one
        letter = {"\x80": "Ģ", "\xbf": "¿"}[more]
        longer = tokenizer._backend.decode([*ids, tokenizer.token_to_id(letter)])
        if not (longer.startswith(text) and longer[len(text) :] == "\ufffd"):
            return text.removesuffix("\ufffd")
    return text


@pytest.mark.parametrize("is_streamed", [True, False])
def test_of_a_request_that_failed_half_a_character_is_lost(byte_level: Tokenizer, is_streamed: bool) -> None:
    request, shown = request_of(is_streamed=is_streamed), ""
    state = TextState(byte_level, request)
    for token_id in byte_level.encode("no é")[:-1]:
        request.output_token_ids.append(token_id)
        shown += state.push(token_id)[0]
    assert shown + state.close(is_cut=True) == "no "


def test_what_was_there_before_and_the_stop_token_are_no_text(byte_level: Tokenizer) -> None:
    request = request_of(is_streamed=False)
    request.output_token_ids += byte_level.encode("old")
    state = TextState(byte_level, request)
    request.output_token_ids += byte_level.encode("new.")
    assert state.close(is_stop_token=True) == "new"
