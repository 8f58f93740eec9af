"""A decision reads as one line."""

from ostinato.runtime.dispatch import Decision, Reason, Rejection
from ostinato.runtime.keys import GraphKey, LiveBatch, RuntimeMode

LIVE = LiveBatch(num_tokens=3)


def test_text_of_a_replay():
    key = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4, kv_tier=64)
    decision = Decision(
        runtime_mode=RuntimeMode.FULL, key=key, live=LIVE, reason=Reason.PADDED, padded_tokens=4, padded_reqs=None
    )
    assert decision.bucket == "4/64"
    assert str(decision) == "FULL because PADDED: 3 live tokens in bucket 4/64 (1 padded)"


def test_text_of_a_fallback():
    decision = Decision(
        runtime_mode=RuntimeMode.EAGER,
        key=None,
        live=LIVE,
        reason=Reason.NOT_UNIFORM,
        padded_tokens=3,
        padded_reqs=None,
        alternatives=(Rejection("full decode graph", Reason.NOT_UNIFORM),),
    )
    assert decision.bucket == "-"
    assert str(decision) == "EAGER because NOT_UNIFORM: 3 live tokens; not full decode graph: NOT_UNIFORM"
