"""The book-keeping of forks against CUDA's rule, worked out another way: by the graph that the waits draw."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.runtime.capture.forks import Fork, ForkLog

STREAMS = 4  # 0 captures
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, STREAMS - 1), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, STREAMS - 1)),
    ),
    max_size=30,
)


class Drawn:
    """Each stream has the set of all work before its next; a captured stream waits for captured ones only."""

    def __init__(self):
        self.before = {0: frozenset()}
        self.own = {}
        self.serial = 0

    def work(self, stream):
        self.serial += 1
        self.before[stream] = self.before[stream] | {self.serial}
        self.own.setdefault(stream, set()).add(self.serial)

    def wait(self, stream, other):
        self.before[stream] = self.before.get(stream, frozenset()) | self.before[other]

    def unjoined(self):
        return {stream for stream in self.before if stream and not self.own.get(stream, set()) <= self.before[0]}


def fork(stream):
    return Fork(stream=stream, name=f"s{stream}", parent="?", at="here:1")


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_it_agrees_with_the_graph_that_the_waits_draw(steps):
    log, drawn = ForkLog(), Drawn()
    log.open(0)
    for kind, stream, other in steps:
        if kind == "work":
            if stream in drawn.before:
                log.work(stream)
                drawn.work(stream)
            continue
        event = object()
        log.record(event, other, f"s{other}")
        is_refused = other not in drawn.before and stream in drawn.before
        assert log.is_foreign(event, stream) == is_refused
        if other in drawn.before:
            log.wait(event, stream, fork(stream))
            drawn.wait(stream, other)
    assert {f.stream for f in log.unjoined()} == drawn.unjoined()
    assert {f.stream for f in log.forks()} == set(drawn.before) - {0}


def test_a_chain_tells_who_forked_whom():
    log = ForkLog()
    log.open(0)
    for stream, other in ((1, 0), (2, 1)):
        event = object()
        log.record(event, other, f"s{other}")
        log.wait(event, stream, fork(stream))
    assert [str(f) for f in log.forks()] == [
        "s1 (forked from the capturing stream at here:1)",
        "s2 (forked from s1 at here:1)",
    ]


def test_without_work_that_was_seen_all_that_was_never_waited_for_is_suspect():
    log = ForkLog()
    log.open(0)
    for stream in (1, 2):
        event = object()
        log.record(event, 0, "s0")
        log.wait(event, stream, fork(stream))
    event = object()
    log.record(event, 1, "s1")
    log.wait(event, 0, fork(0))
    assert not log.unjoined()
    assert [f.stream for f in log.suspects()] == [2]


def test_events_belong_to_the_segment_that_they_were_recorded_in():
    log = ForkLog()
    before, inside, after = object(), object(), object()
    log.record(before, 1, "s1")
    assert log.recorded_on(before) == "s1" and log.recorded_on(inside) is None
    assert not log.is_foreign(before, 0)
    log.open(0)
    log.record(inside, 0, "s0")
    assert log.is_foreign(before, 0)
    assert not log.is_foreign(before, 1), "a stream outside may wait for what is outside"
    assert not log.is_foreign(inside, 1)
    log.close()
    assert log.is_foreign(inside, 0) and log.is_foreign(inside, 1)
    log.open(0)
    assert log.is_foreign(inside, 0)
    log.record(after, 1, "s1")
    assert log.is_foreign(after, 0)
    log.clear()
    assert not log.is_foreign(inside, 0)
