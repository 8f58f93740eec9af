"""Which memory a session's segments have made, where ops and an allocator both tell."""

from dataclasses import dataclass

import pytest

from ostinato.runtime.capture.made_memory import MadeMemory
from ostinato.runtime.capture.pool_view import PoolView


@dataclass
class Pool:
    handle: tuple = (0, 1)
    num_graphs: int = 1
    last_session: object = None


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
def session(allocator):
    """A factory of sessions that look at the allocator."""
    return lambda: MadeMemory(lambda handle: PoolView(handle, allocator.snapshot))


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_nothing_is_made_before_a_segment_begins(session):
    made = session()
    made.seen |= {5}
    assert not made.has(5)


def test_what_ops_and_what_the_allocator_show_is_made(allocator, pool, session):
    before = allocator.allocate(8)
    made = session()
    made.enter(pool)
    unseen, eager = allocator.allocate(8), allocator.allocate(8, allocator.others)
    made.seen |= {5}
    assert made.has(5) and made.has(address(unseen))
    assert not made.has(address(before)), "an earlier session's"
    assert not made.has(address(eager)), "what a break allocates lies in another pool"


def test_later_segments_of_a_session_forget_nothing(allocator, pool, session):
    made = session()
    for _ in range(3):
        made.enter(pool)
        tensor = allocator.allocate(8)
    first = allocator.segments[0]["address"]
    assert made.has(first) and made.has(address(tensor))
    assert allocator.num_snapshots == 2, "at the session's begin, and for the pool's first segment"


def test_a_session_without_a_view_asks_no_allocator(allocator, pool):
    made = MadeMemory(lambda handle: None)
    made.enter(pool)
    made.seen |= {5}
    assert made.has(5) and not made.has(address(allocator.allocate(8)))
    assert allocator.num_snapshots == 0


def test_memory_that_no_graph_keeps_is_not_made(allocator, pool, session):
    """An empty segment is dropped, and the pool with it if it was the only one."""
    made = session()
    made.enter(pool)
    made.seen |= {5}
    unseen = allocator.allocate(8)
    pool.num_graphs = 0
    assert not made.has(5) and not made.has(address(unseen))
    made.enter(Pool((0, 2)))
    assert not made.has(5) and not made.has(address(unseen)), "it lies in the pool that died"


def test_what_a_plan_captured_inside_of_a_break_makes_is_not_ours(allocator, pool, session):
    outer, inner = session(), session()
    outer.enter(pool)
    mine = allocator.allocate(8)
    outer.seen |= {address(mine)}
    assert outer.has(address(mine))
    allocator.free(mine)
    inner.enter(pool)
    theirs = allocator.allocate(8)
    assert address(theirs) == address(mine), "the pool gives out what we let go of"
    assert inner.has(address(theirs)) and not outer.has(address(theirs))
    outer.enter(pool)
    assert not outer.has(address(theirs)), "in use when we go on, and no replay of ours rewrites it"
    assert outer.has(address(allocator.allocate(8)))


def test_what_a_discarded_segment_made_is_not_made(allocator, pool, session):
    made = session()
    made.enter(pool)
    made.seen |= {5}
    unseen = allocator.allocate(8)
    made.forget()
    assert not made.has(5) and not made.has(address(unseen))
    made.enter(pool)
    assert not made.has(5) and not made.has(address(unseen))
    assert made.has(address(allocator.allocate(8)))


def test_memory_that_was_in_use_and_is_given_out_again_is_held(allocator, pool, session):
    old = allocator.allocate(8)
    made = session()
    made.enter(pool)
    allocator.free(old)
    again = allocator.allocate(8)
    assert address(again) == address(old)
    assert not made.has(address(again))
