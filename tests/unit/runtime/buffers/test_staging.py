"""Staging is a ring of mirrors, one on the CPU, and one copy to the arena."""

import sys

import pytest
import torch

from ostinato.errors import ConfigError, InputSpecError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Slot, Staging, StaticBuffers

SLOTS = {
    "ids": Slot(shape=(None,), dtype=torch.int64),
    "offsets": Slot(shape=(None,), dtype=torch.int32, axis=NUM_REQS, extra=1),
}
SIZES = {NUM_TOKENS: 4, NUM_REQS: 2}


def make(device, **settings):
    buffers = StaticBuffers(SLOTS, max_sizes={NUM_TOKENS: 8, NUM_REQS: 8}, device=torch.device(device))
    return buffers, Staging(buffers, **settings)


def test_the_arena_gets_what_the_host_wrote_at_the_upload():
    buffers, staging = make("cpu")
    staging.open(SIZES)["ids"].fill_(3)
    assert buffers.views(SIZES)["ids"].tolist() == [0] * 4, "another's steps may still read it"
    staging.open(SIZES)["offsets"].fill_(4)
    staging.upload(SIZES)
    buffers.views(SIZES)["ids"].fill_(5)  # whatever others do to the arena: what the host wrote stays
    assert [slot.tolist() for slot in staging.open(SIZES).values()] == [[3] * 4, [4] * 3]
    staging.upload(SIZES)
    assert [slot.tolist() for slot in buffers.views(SIZES).values()] == [[3] * 4, [4] * 3]


def test_what_a_writer_says_holds_until_other_sizes_lie_there():
    _, staging = make("cpu")
    assert staging.open(SIZES).kept is None
    staging.open(SIZES).kept = "mine"
    assert staging.open(SIZES).kept == "mine"
    other = staging.open({NUM_TOKENS: 8, NUM_REQS: 2})
    assert other.kept is None
    other.kept = "of others"
    assert staging.open(SIZES).kept is None
    assert staging.open({NUM_TOKENS: 8, NUM_REQS: 2}).kept is None


def test_arrays_are_the_same_memory_and_are_kept():
    _, staging = make("cpu")
    host = staging.open(SIZES)
    host["ids"].fill_(3)
    assert host.arrays["ids"].tolist() == [3] * 4
    host.arrays["ids"][:] = 5
    assert host["ids"].tolist() == [5] * 4
    assert staging.open(SIZES).arrays is host.arrays


@pytest.mark.parametrize(
    ("sizes", "words"),
    [({}, "no 'num_tokens'"), ({NUM_TOKENS: 4}, "no 'num_reqs'"), ({NUM_TOKENS: 9, NUM_REQS: 2}, "exceeds")],
)
def test_sizes_that_are_none_are_told(sizes, words):
    buffers, staging = make("cpu")
    for use in (staging.open, staging.upload, buffers.views):
        with pytest.raises(ConfigError, match=words) as caught:
            use(sizes)
        assert caught.value.fix
    staging.open(SIZES)  # and all goes on


def test_a_dtype_that_numpy_does_not_have_is_named():
    slots = {"scale": Slot(shape=(None,), dtype=torch.bfloat16)}
    host = Staging(StaticBuffers(slots, max_sizes={NUM_TOKENS: 8, NUM_REQS: 8}, device=torch.device("cpu"))).open(SIZES)
    with pytest.raises(InputSpecError, match="slot scale is torch") as caught:
        host.arrays  # noqa: B018
    assert caught.value.fix


def test_sizes_go_by_name():
    _, staging = make("cpu")
    assert staging.open(SIZES)["ids"].shape == (4,)
    assert staging.open({NUM_REQS: 4, NUM_TOKENS: 2})["ids"].shape == (2,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_mirror_is_rewritten_only_after_its_copy_has_run():
    buffers, staging = make("cuda", depth=2)
    seen = []
    for step in range(50):
        torch.cuda._sleep(200_000)  # the copies queue up behind this
        views = staging.open(SIZES)
        views["ids"].fill_(step)
        views["offsets"].fill_(step)
        staging.upload(SIZES)
        seen.append(buffers.views(SIZES)["ids"].clone())
    assert [row.tolist() for row in seen] == [[step] * 4 for step in range(50)]


class PlantedEvents:
    """In place of `torch.Event`: what is done with all of them, in order."""

    def __init__(self, monkeypatch, *, is_lost=False):
        self.seen = []
        self.is_lost = is_lost
        monkeypatch.setattr(torch, "Event", lambda device: self)

    def record(self):
        self.seen.append("recorded")

    def synchronize(self):
        self.seen.append("waited")
        if self.is_lost:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")


def as_on_a_device(copy):
    """A ring of two whose copies are ``copy``."""
    _, staging = make("cpu", depth=2)
    staging._is_host, staging._bind_copy = False, lambda target, source: copy
    staging._mirrors, staging._steps, staging._pending = staging._mirrors * 2, [{}, {}], [None, None]
    staging._opened = [None, None]
    return staging


@pytest.mark.parametrize("is_lost", [False, True])
def test_mirrors_go_when_their_copies_have_run(monkeypatch, is_lost):
    """torch does not know of a copy by a kernel, and would give the memory to others. A lost device ends them all."""
    events = PlantedEvents(monkeypatch, is_lost=is_lost)
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    staging = as_on_a_device(lambda: events.seen.append("copied"))
    for _ in range(2):
        staging.open(SIZES)
        staging.upload(SIZES)
    assert events.seen == ["copied", "recorded"] * 2
    del staging
    assert events.seen[4:] == (["waited"] if is_lost else ["waited"] * 2) and not printed


def test_a_mirror_whose_copy_was_interrupted_is_waited_for_too(monkeypatch):
    events = PlantedEvents(monkeypatch)

    def copy():
        events.seen.append("copied")
        raise KeyboardInterrupt

    staging = as_on_a_device(copy)
    staging.open(SIZES)
    with pytest.raises(KeyboardInterrupt):
        staging.upload(SIZES)
    staging.open(SIZES)
    staging.open(SIZES)
    assert events.seen == ["copied", "recorded", "waited"]
