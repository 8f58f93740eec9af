"""Sizes that no step can have are refused before a key is chosen for them."""

import pytest

from ostinato.errors import InputSpecError
from ostinato.runtime.dispatch import Dispatcher
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode
from ostinato.telemetry import EventBus

KEY = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_tokens": -1}, "num_tokens=-1"),
        ({"num_tokens": 0}, "num_tokens=0"),
        ({"num_tokens": 1.5}, "num_tokens=1.5"),
        ({"num_tokens": None}, "num_tokens=None"),
        ({"num_tokens": 3, "num_reqs": 0}, "num_reqs=0"),
        ({"num_tokens": 3, "num_reqs": 5}, "3 tokens cannot have 5 requests"),
        ({"num_tokens": 3, "uniform_query_len": True}, "uniform_query_len=True"),
    ],
)
def test_impossible_sizes(sizes, message):
    dispatcher = Dispatcher([KEY], bus=EventBus())
    dispatcher.mark_captured(KEY)
    with pytest.raises(InputSpecError, match=message):
        dispatcher.decide(LiveBatch(**sizes))
    assert dispatcher.decide(LiveBatch(num_tokens=3)).key == KEY
