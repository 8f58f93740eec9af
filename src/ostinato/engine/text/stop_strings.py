"""Cut a stream of text at the first stop string, across any token borders.

Called by the loop after the detokenizer. The result does not depend on how the text is cut into
pieces: with several stop strings, the one that is complete first wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import RequestError


class StopStrings:
    """Watches one request's text. The stop string itself is never emitted.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if any(not stop for stop in stops):
            raise RequestError("a stop string is empty", fix="leave it out, or give at least one character")
        self._stops = tuple(stops)
        self._beginnings = frozenset(stop[0] for stop in self._stops)
        self._longest_part = max(map(len, self._stops), default=1) - 1
        self._held = ""
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string that was found, if any."""
        return self._hit

    def push(self, delta: str) -> tuple[str, str | None]:
        """Add text; return the text that may be shown and the stop string that was hit.

        Text that may turn out to begin a stop string is held back. After a hit nothing more comes.
        """
        if self._hit is not None:
            return "", self._hit
        if not self._stops:
            return delta, None
        text = self._held + delta
        found = self._first_complete(text)
        if found is not None:
            begin, self._hit = found
            self._held = ""
            return text[:begin], self._hit
        keep = self._longest_begun(text)
        border = len(text) - keep
        self._held = text[border:]
        return text[:border], None

    def flush(self) -> str:
        """Return what is held back: the text ended before the stop string did."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        """Begin and name of the stop string that ends first; of two that end together, the longer."""
        hits = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if not hits:
            return None
        _, begin, stop = min(hits)
        return begin, stop

    def _longest_begun(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for length in range(min(self._longest_part, len(text)), 0, -1):
            if text[-length] in self._beginnings:
                tail = text[-length:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return length
        return 0
