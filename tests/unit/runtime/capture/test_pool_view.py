"""What a pool has allocated since a moment, by made-up snapshots of an allocator."""

import pytest

from ostinato.runtime.capture.pool_view import PoolView

OURS, OTHERS = (0, 7), (0, 0)


def segment(address, *blocks, pool=OURS):
    """A segment of (size, state) blocks that follow each other."""
    found, at = [], address
    for size, state in blocks:
        found.append({"address": at, "size": size, "state": state})
        at += size
    return {"address": address, "total_size": at - address, "segment_pool_id": pool, "blocks": found}


def view_of(*states):
    """A view that is shown one of ``states`` after the other; past the last it must not look."""
    left = list(states)
    return PoolView(OURS, lambda: left.pop(0))


USED, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"


@pytest.mark.parametrize(
    ("address", "is_new"),
    [
        (999, False),  # before the segment
        (1000, False),
        (1099, False),
        (1100, True),  # it was free when the view was made: whoever lives there came later
        (1299, True),
        (1300, False),  # given back by its owner, but a stream may still use it
        (1400, True),
        (1499, True),
        (1500, False),  # behind the segment
        (5000, False),  # in another pool
        (5050, False),
        (0, False),  # a tensor without memory
    ],
)
def test_new_is_what_lies_in_the_pool_and_in_no_block_that_was_in_use(address, is_new):
    state = [
        segment(5000, (50, USED), (50, FREE), pool=OTHERS),  # in no order of addresses
        segment(1000, (100, USED), (200, FREE), (100, PENDING), (100, FREE)),
    ]
    assert view_of(state, state).is_new(address) is is_new


def test_an_unknown_state_counts_as_in_use():
    assert not view_of([segment(1000, (100, "something of torch 3"))]).is_new(1000)


def test_it_looks_again_only_for_addresses_that_it_has_never_seen():
    first = [segment(1000, (100, USED), (100, FREE)), segment(5000, (100, USED), pool=OTHERS)]
    grown = [*first, segment(2000, (100, USED), (100, FREE)), segment(6000, (100, USED), pool=OTHERS)]
    view = view_of(first, grown, grown)
    for _ in range(3):
        assert view.is_new(1100) and not view.is_new(1000) and not view.is_new(5000)
    assert view.num_looks == 1
    for _ in range(3):
        assert view.is_new(2000) and view.is_new(2100) and not view.is_new(6000)
    assert view.num_looks == 2
    for _ in range(3):
        assert not view.is_new(9000), "memory that is not the allocator's: reserved regions, another library's"
    assert view.num_looks == 3


def test_a_segment_that_expands_is_looked_at_again():
    view = view_of([segment(1000, (100, USED))], [segment(1000, (100, USED), (200, USED))])
    assert view.is_new(1100)
    assert not view.is_new(1000)


def test_memory_that_was_in_use_stays_old_when_it_is_given_out_again():
    first = [segment(1000, (100, USED), (100, FREE))]
    later = [segment(1000, (200, USED)), segment(3000, (100, USED))]  # merged with its neighbour, and given out
    view = view_of(first, later)
    assert view.is_new(3000)
    assert not view.is_new(1000)


def test_an_address_that_was_elsewhere_stays_elsewhere():
    """Memory at that address was given back, and the pool has taken it since: held all the same."""
    view = view_of([], [], [segment(9000, (100, USED))])
    assert not view.is_new(9000)
    assert not view.is_new(9000)
    assert view.num_looks == 2


def test_a_pool_that_nobody_has_used_holds_nothing_old():
    view = view_of([], [segment(1000, (100, USED))])
    assert view.is_new(1050)


@pytest.mark.parametrize("lacks", ["address", "total_size", "segment_pool_id", "blocks"])
@pytest.mark.parametrize("at", [0, 1])
def test_snapshots_of_another_form_make_nothing_new(lacks, at):
    states = [[segment(1000, (100, FREE))], [segment(1000, (100, FREE)), segment(2000, (100, USED))]]
    del states[at][-1][lacks]
    view = view_of(*states)
    is_needed = lacks != "blocks" or at == 0  # later, blocks are not looked at
    assert view.is_new(2000) is not is_needed
    assert view.is_new(1000) is not is_needed


@pytest.mark.parametrize("lacks", ["address", "size", "state"])
def test_blocks_of_another_form_make_nothing_new(lacks):
    state = [segment(1000, (100, FREE), (100, USED))]
    for block in state[0]["blocks"]:
        del block[lacks]
    assert not view_of(state).is_new(1000)


@pytest.mark.parametrize("error", [RuntimeError("does not yet support snapshot"), TypeError()])
def test_an_allocator_that_does_not_tell_makes_nothing_new(error):
    def look():
        raise error

    view = PoolView(OURS, look)
    assert not view.is_new(1000)
    assert view.num_looks == 1, "it is not asked again"


@pytest.mark.parametrize("pool_id", [None, 1])
def test_a_pool_id_of_another_form_makes_nothing_new(pool_id):
    state = [segment(1000, (100, FREE), pool=pool_id)]
    assert not view_of(state).is_new(1000)
