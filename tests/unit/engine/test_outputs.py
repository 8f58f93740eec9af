"""Whole answers and the routing of updates, with a loop that plays a script."""

import pytest

from ostinato.engine.loop import RequestUpdate
from ostinato.engine.outputs import RequestOutput, UpdateRouter
from ostinato.engine.request import FinishReason
from ostinato.errors import ClosedError, EngineError


class ScriptedLoop:
    def __init__(self, *steps):
        self.steps = list(steps)
        self.aborted = []

    def step(self):
        return self.steps.pop(0)

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
