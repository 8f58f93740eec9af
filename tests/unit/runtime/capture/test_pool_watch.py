"""Another memory pool may not be entered in a segment. The pool itself needs a GPU; see tests/gpu."""

import threading

import pytest
import torch
from torch.cuda import use_mem_pool as taken_before

from ostinato.errors import CaptureError
from ostinato.runtime.breaks import recording
from ostinato.runtime.capture.pool_watch import refusing_other_pools


@pytest.mark.parametrize("enter", [taken_before, lambda pool: torch.cuda.use_mem_pool(pool)], ids=["taken", "named"])
def test_it_is_refused_by_the_users_line(enter):
    code = torch.cuda.use_mem_pool.__code__
    with (
        recording(),
        refusing_other_pools(),
        pytest.raises(CaptureError, match="outside of the graph's pool") as caught,
    ):
        enter(None)
    assert "test_pool_watch.py" in caught.value.context["at"]
    assert "@graph_break" in caught.value.fix
    assert torch.cuda.use_mem_pool.__code__ is code


def test_only_the_thread_that_records_is_refused():
    made = []
    with recording(), refusing_other_pools():
        thread = threading.Thread(target=lambda: made.append(taken_before(None)))
        thread.start()
        thread.join()
    assert hasattr(made[0], "__enter__")


def test_a_torch_without_it_is_left_alone(monkeypatch):
    monkeypatch.delattr(torch.cuda, "use_mem_pool")
    with recording(), refusing_other_pools():
        assert not hasattr(torch.cuda, "use_mem_pool")
