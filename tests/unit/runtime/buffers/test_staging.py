"""Staging on the host writes the arena itself; on a device it is a ring of mirrors and one copy."""

import pytest
import torch

from ostinato.errors import InputSpecError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Slot, Staging, StaticBuffers

SLOTS = {
    "ids": Slot(shape=(None,), dtype=torch.int64),
    "offsets": Slot(shape=(None,), dtype=torch.int32, axis=NUM_REQS, extra=1),
}
SIZES = {NUM_TOKENS: 4, NUM_REQS: 2}


def make(device, **settings):
    buffers = StaticBuffers(SLOTS, max_sizes={NUM_TOKENS: 8, NUM_REQS: 8}, device=torch.device(device))
    return buffers, Staging(buffers, **settings)


def test_the_host_writes_the_arena_itself():
    buffers, staging = make("cpu")
    staging.open(SIZES)["ids"].fill_(3)
    assert buffers.views(SIZES)["ids"].tolist() == [3] * 4
    staging.upload(SIZES)
    assert buffers.views(SIZES)["ids"].tolist() == [3] * 4


def test_arrays_are_the_same_memory_and_are_kept():
    _, staging = make("cpu")
    host = staging.open(SIZES)
    host["ids"].fill_(3)
    assert host.arrays["ids"].tolist() == [3] * 4
    host.arrays["ids"][:] = 5
    assert host["ids"].tolist() == [5] * 4
    assert staging.open(SIZES).arrays is host.arrays


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
