"""Whole answers and the routing of updates, with a loop that plays a script."""

import pytest

from ostinato.engine.outputs import RequestOutput, UpdateRouter
from ostinato.engine.request import FinishReason
from ostinato.engine.updates import RequestUpdate
from ostinato.errors import ClosedError, EngineError
from ostinato.telemetry import EventBus, MemorySink, ReceiverFailed


class ScriptedLoop:
    def __init__(self, *steps):
        self.steps = list(steps)
        self.aborted = []

    def step(self):
        return self.steps.pop(0)

    def has_work(self):
        return bool(self.steps)

    def abort(self, request_id):
        self.aborted.append(request_id)


def update(request_id, text, finish=None):
    return RequestUpdate(request_id=request_id, text=text, finish_reason=finish)


def test_each_update_reaches_its_receiver_and_the_rest_is_kept():
    loop = ScriptedLoop(
        [update("a", "x"), update("b", "y")], [update("a", "z", FinishReason.STOP)], [update("a", "late")]
    )
    router = UpdateRouter(loop, lambda: None)
    output = RequestOutput(request_id="a", prompt=None)
    router.register("a", output.extend)
    router.step()
    router.step()
    assert (output.text, output.finish_reason) == ("xz", FinishReason.STOP)
    assert router.num_receivers == 0
    router.step()
    assert [u.text for u in router.take_unread()] == ["y", "late"]
    assert not router.has_unread


def test_two_followers_do_not_take_each_others_updates():
    loop = ScriptedLoop(
        [update("a", "1"), update("b", "2", FinishReason.LENGTH)], [update("a", "3", FinishReason.STOP)]
    )
    router = UpdateRouter(loop, lambda: None)
    first, second = router.follow("a"), router.follow("b")
    assert [u.text for u in second] == ["2"]
    assert [u.text for u in first] == ["1", "3"]
    assert loop.aborted == []


@pytest.mark.parametrize("has_started", [False, True])
def test_leaving_a_follower_early_aborts(has_started):
    loop = ScriptedLoop([update("a", "1")])
    follower = UpdateRouter(loop, lambda: None).follow("a")
    if has_started:
        next(follower)
    follower.close()
    assert loop.aborted == ["a"]


def test_a_receiver_that_raises_loses_its_own_request_alone():
    loop = ScriptedLoop(
        [update("a", "1"), update("bad", "2"), update("c", "3")],
        [
            update("a", "4", FinishReason.STOP),
            update("bad", "", FinishReason.ABORT),
            update("c", "5", FinishReason.STOP),
        ],
    )
    events = MemorySink()
    router = UpdateRouter(loop, lambda: None, bus=EventBus(events))
    got, calls = [], []

    def raises(_update):
        calls.append(_update.text)
        raise ValueError("the consumer is broken")

    router.register("a", got.append)
    router.register("bad", raises)
    router.register("c", got.append)
    router.step()
    assert loop.aborted == ["bad"]
    router.step()
    assert [u.text for u in got] == ["1", "3", "4", "5"] and calls == ["2"]
    assert not router.has_unread and router.num_receivers == 0
    (event,) = events.events
    assert isinstance(event, ReceiverFailed) and event.request_id == "bad" and "broken" in event.error


def test_a_receiver_that_raises_at_the_last_update_has_nothing_to_abort():
    loop = ScriptedLoop([update("bad", "", FinishReason.STOP), update("a", "1", FinishReason.STOP)])
    router = UpdateRouter(loop, lambda: None)
    router.register("bad", {}.__getitem__)
    router.step()
    assert loop.aborted == [] and router.num_receivers == 0
    assert [u.text for u in router.take_unread()] == ["1"]


def test_an_interrupt_in_a_receiver_loses_no_update_of_others():
    loop = ScriptedLoop([update("bad", "1"), update("a", "2"), update("a", "3", FinishReason.STOP)])
    router = UpdateRouter(loop, lambda: None)

    def interrupted(_update):
        raise KeyboardInterrupt

    router.register("bad", interrupted)
    with pytest.raises(KeyboardInterrupt):
        router.step()
    assert router.has_unread
    router.step()
    assert [u.text for u in router.take_unread()] == ["2", "3"] and not router.has_unread


def test_waiting_for_an_answer_that_nobody_will_give_is_an_error_and_no_hang():
    router = UpdateRouter(ScriptedLoop([update("b", "2")]), lambda: None)
    with pytest.raises(EngineError, match="nothing is left to run"):
        next(router.follow("a"))


def test_no_step_runs_on_a_closed_engine():
    def refuse():
        raise ClosedError("closed")

    with pytest.raises(ClosedError):
        UpdateRouter(ScriptedLoop([]), refuse).step()


def test_an_error_stays_with_its_output():
    output = RequestOutput(request_id="a", prompt="p")
    error = EngineError("bad logits")
    output.extend(RequestUpdate(request_id="a", finish_reason=FinishReason.ERROR, error=error))
    output.extend(update("a", "more"))
    assert output.error is error
    assert output.finish_reason is FinishReason.ERROR
