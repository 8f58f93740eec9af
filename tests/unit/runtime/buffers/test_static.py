"""Static buffers: one arena, one layout for each pair of sizes, tails by policy."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import AddressChangedError, ConfigError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Slot, StaticBuffers

CPU = torch.device("cpu")
MAX = {NUM_TOKENS: 8, NUM_REQS: 4}
SLOTS = {
    "offsets": Slot(shape=(None,), dtype=torch.int32, axis=NUM_REQS, extra=1, tail="keep"),
    "x": Slot(shape=(None, 3), dtype=torch.float32),
    "table": Slot(shape=(2, 2), dtype=torch.float64),
    "ids": Slot(shape=(None,), dtype=torch.int64, tail="fill", fill=7, valid_range=(7, 8)),
}


def sizes(num_tokens, num_reqs=4):
    return {NUM_TOKENS: num_tokens, NUM_REQS: num_reqs}


@pytest.fixture
def buffers():
    return StaticBuffers(SLOTS, max_sizes=MAX, device=CPU)


def test_views_have_the_declared_shapes_in_declared_order(buffers):
    views = buffers.views(sizes(3, 2))
    assert [(name, tuple(v.shape), v.dtype) for name, v in views.items()] == [
        ("offsets", (3,), torch.int32),
        ("x", (3, 3), torch.float32),
        ("table", (2, 2), torch.float64),
        ("ids", (3,), torch.int64),
    ]


@given(num_tokens=st.integers(1, 8), num_reqs=st.integers(1, 4))
def test_layouts_lie_within_the_arena_and_do_not_overlap(num_tokens, num_reqs):
    buffers = StaticBuffers(SLOTS, max_sizes=MAX, device=CPU)
    start = buffers.arena.data_ptr()
    spans = sorted(
        (v.data_ptr() - start, v.data_ptr() - start + v.numel() * v.element_size())
        for v in buffers.views(sizes(num_tokens, num_reqs)).values()
    )
    assert all(begin % 8 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= buffers.num_bytes_at(sizes(num_tokens, num_reqs)) <= buffers.num_bytes


def test_addresses_hold(buffers):
    first = {name: v.data_ptr() for name, v in buffers.views(sizes(4)).items()}
    buffers.views(sizes(8))
    assert {name: v.data_ptr() for name, v in buffers.views(sizes(4)).items()} == first
    assert buffers.views(sizes(4, 1))["x"].data_ptr() == first["x"], "token slots do not depend on the requests"


def test_a_step_is_written_and_padded(buffers):
    padded = sizes(4)
    for value in buffers.views(padded).values():
        value.fill_(55)
    values = {
        "offsets": torch.tensor([0, 1, 3], dtype=torch.int32),
        "x": torch.ones(3, 3),
        "table": torch.eye(2, dtype=torch.float64),
        "ids": torch.arange(3) + 10,
    }
    buffers.write(values, padded)
    buffers.pad({NUM_TOKENS: 3, NUM_REQS: 2}, padded)
    views = buffers.views(padded)
    assert views["offsets"].tolist() == [0, 1, 3, 55, 55]
    assert views["x"].tolist() == [[1.0] * 3] * 3 + [[0.0] * 3]
    assert torch.equal(views["table"], values["table"])
    assert views["ids"].tolist() == [10, 11, 12, 7]


def test_an_exact_step_has_no_tail(buffers):
    views = buffers.views(sizes(4))
    views["ids"].fill_(9)
    buffers.pad(sizes(4), sizes(4))
    assert views["ids"].tolist() == [9] * 4


def test_steps_beyond_the_largest_are_refused(buffers):
    with pytest.raises(ConfigError, match=r"\{'num_tokens': 9\} exceeds the static buffers"):
        buffers.views(sizes(9))


def test_a_moved_arena_is_noticed(buffers):
    buffers.check_addresses()
    buffers.arena = buffers.arena.clone()
    with pytest.raises(AddressChangedError, match="static buffers moved since capture"):
        buffers.check_addresses()


def test_a_mirror_has_the_same_layout(buffers):
    mirror = torch.empty_like(buffers.arena)
    buffers.views_of(mirror, sizes(3))["ids"].copy_(torch.tensor([1, 2, 3]))
    buffers.arena.copy_(mirror)
    assert buffers.views(sizes(3))["ids"].tolist() == [1, 2, 3]


def test_buffers_made_in_inference_mode_are_as_good_as_any():
    with torch.inference_mode():
        buffers = StaticBuffers(
            {"x": Slot(shape=(None, 2), dtype=torch.float32)},
            max_sizes={"num_tokens": 4, "num_reqs": 4},
            device=torch.device("cpu"),
        )
    buffers.arena.fill_(0)
    assert not buffers.arena.is_inference()
