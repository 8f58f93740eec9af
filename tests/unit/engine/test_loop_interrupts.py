"""An interrupt just while tokens are entered: nobody gets a wrong or a missing token for it."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.engine.request import FinishReason
from ostinato.errors import EngineDeadError
from ostinato.testing.scripted_loop import ScriptedLoop


@pytest.mark.parametrize("place", ["complete", "deliver"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_the_engine_ends_and_says_so(monkeypatch: pytest.MonkeyPatch, overlap: bool, place: str) -> None:
    bench = ScriptedLoop(None, overlap=overlap)
    for name in ("a", "b"):
        bench.add(name, [5] * 20, max_tokens=10)
    received = [update for _ in range(3) for update in bench.loop.step()]
    assert {update.request_id for update in received} == {"a", "b"}

    def interrupted(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    if place == "complete":
        monkeypatch.setattr(bench.scheduler, "complete", interrupted)
    else:
        monkeypatch.setattr(bench.loop._updates, "_update_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.loop.step()
    ends = {update.request_id: update for update in bench.loop.step() if update.finish_reason is not None}
    assert set(ends) == {"a", "b"}
    for update in ends.values():
        assert update.finish_reason is FinishReason.ERROR and isinstance(update.error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        bench.loop.step()
