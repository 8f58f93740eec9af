"""Stop strings: the cut never depends on how the text arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.text import StopStrings
from ostinato.errors import RequestError


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, str | None]:
    """Everything that was shown, and the hit."""
    watcher = StopStrings(stops)
    shown, hit = "", None
    for piece in pieces:
        text, hit = watcher.push(piece)
        shown += text
    return shown + watcher.flush(), hit


def chunked(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


# A two-letter alphabet makes overlaps and near misses common.
short_text = st.text(alphabet="ab", max_size=24)
short_stop = st.text(alphabet="ab", min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 24), max_size=8)


@given(text=short_text, stop=short_stop, where=cuts)
def test_one_stop_equals_split_for_every_chunking(text: str, stop: str, where: list[int]) -> None:
    shown, hit = run((stop,), chunked(text, where))
    assert shown == text.split(stop)[0]
    assert hit == (stop if stop in text else None)


@given(text=short_text, stops=st.lists(short_stop, min_size=1, max_size=4), where=cuts)
def test_several_stops_do_not_depend_on_the_chunking(text: str, stops: list[str], where: list[int]) -> None:
    assert run(tuple(stops), chunked(text, where)) == run(tuple(stops), list(text))


def test_the_stop_that_is_complete_first_wins() -> None:
    assert run(("abcd", "bc"), ["abcd"]) == ("a", "bc")


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert run(("c", "bc"), ["abc"]) == ("a", "bc")


def test_text_is_held_back_only_while_it_may_begin_a_stop() -> None:
    watcher = StopStrings(("</end>",))
    assert watcher.push("hi </e") == ("hi ", None)
    assert watcher.push("m>") == ("</em>", None)


def test_nothing_comes_after_a_hit() -> None:
    watcher = StopStrings(("X",))
    assert watcher.push("aXb") == ("a", "X")
    assert watcher.push("more") == ("", "X")
    assert watcher.flush() == ""
    assert watcher.hit == "X"


def test_without_stops_all_passes_at_once() -> None:
    assert StopStrings().push("anything") == ("anything", None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopStrings(("a", ""))
