"""One step at a time over threads; a step within a step on one thread is an error and no deadlock."""

import threading
import time

import pytest
import torch

from ostinato.errors import RuntimeStateError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.runners import StepLock


def test_other_threads_wait():
    lock, inside, most = StepLock(), [0], [0]

    def work():
        for _ in range(20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert most == [1]


def finishes(work):
    """Whether ``work()`` returns within seconds; its error is raised here."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    if errors:
        raise errors[0]
    return not thread.is_alive()


def test_a_step_inside_a_step_is_an_error():
    lock = StepLock()

    def work():
        with lock, pytest.raises(RuntimeStateError, match="from inside its own step"), lock:
            raise AssertionError("not reached")
        with lock:  # and the lock is whole
            pass

    assert finishes(work)


def test_an_exception_gives_the_lock_back():
    lock = StepLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError

    def work():
        with lock:
            pass

    assert finishes(work)


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_a_break_that_calls_its_own_callable(ready, partition):
    state = {"graphed": None}

    @graph_break
    def calls_back(h):
        if state["graphed"] is not None:
            state["graphed"](torch.ones(4, 2))
        return h * 2

    graphed = ready(
        lambda x: calls_back(x + 1) + 1, torch.ones(4, 2), mode="piecewise", partition=partition, sizes=(4,)
    )
    state["graphed"] = graphed
    with pytest.raises(RuntimeStateError, match="do not call it from its own breaks"):
        assert finishes(lambda: graphed(torch.ones(4, 2)))
    state["graphed"] = None
    assert graphed(torch.ones(4, 2)).eq(5).all()


def test_a_progress_callback_that_calls_its_own_callable():
    with Graphed(lambda x: x + 1, example=(torch.ones(4, 2),), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        with pytest.raises(RuntimeStateError, match="from inside its own step"):
            assert finishes(lambda: graphed.capture(on_key=lambda key: graphed(torch.ones(4, 2))))
