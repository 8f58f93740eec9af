"""Copies by a kernel hold what stood there when their turn came, either way, in the order of the stream."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.kernels.pinned_copy import KernelCopy, copies_by_kernel
from ostinato.engine.sampling.host_copy import HostCopy
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Slot, Staging, StaticBuffers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = torch.device("cuda")


@pytest.mark.parametrize("num_words", [1, 2, 511, 512, 513, 100_000])
def test_every_word_arrives_and_none_beside_it(num_words):
    pinned = torch.arange(num_words, dtype=torch.int64).pin_memory()
    target = torch.full((num_words + 2,), -1, dtype=torch.int64, device=DEVICE)
    copy = KernelCopy(pinned, DEVICE)
    copy.into(target[1:-1])()
    assert target.tolist() == [-1, *range(num_words), -1]
    target[1:-1] *= 3
    copy.from_device(target[1:-1])
    torch.cuda.synchronize()
    assert pinned.tolist() == [3 * word for word in range(num_words)]


def test_the_host_may_write_again_once_the_copy_has_run():
    """Whatever the device's caches hold of the memory: each copy sees the values of its own time."""
    pinned = torch.zeros(4096, dtype=torch.int64).pin_memory()
    target = torch.empty(4096, dtype=torch.int64, device=DEVICE)
    run = KernelCopy(pinned, DEVICE).into(target)
    for step in range(200):
        pinned.fill_(step)
        run()
        assert int(target.sum()) == 4096 * step  # waits


def test_a_copy_waits_for_the_kernels_before_it():
    tokens = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    for step in range(20):
        torch.cuda._sleep(200_000)
        tokens.fill_(step)
        copy = HostCopy(tokens[1:33])
        tokens.fill_(-7)
        assert copy._kernel is not None and copy.read().tolist() == [step] * 32


def test_memory_of_a_copy_that_nobody_reads_is_not_written_later():
    tokens = torch.full((1 << 16,), 9, dtype=torch.int64, device=DEVICE)
    HostCopy(tokens)  # warm
    torch.cuda._sleep(20_000_000)
    copy = HostCopy(tokens)
    address = copy._host.data_ptr()
    del copy  # waits: else torch would hand the memory out while it is written
    again = torch.zeros(1 << 16, dtype=torch.int64, pin_memory=True)
    assert again.data_ptr() == address, "the allocator did not use it again: the test shows nothing"
    torch.cuda.synchronize()
    assert int(again.sum()) == 0


def test_staging_brings_steps_over_by_kernels():
    slots = {
        "ids": Slot(shape=(None,), dtype=torch.int64),
        "mask": Slot(shape=(None,), dtype=torch.bool),
        "offsets": Slot(shape=(None,), dtype=torch.int32, axis=NUM_REQS, extra=1),
    }
    buffers = StaticBuffers(slots, max_sizes={NUM_TOKENS: 40, NUM_REQS: 8}, device=DEVICE)
    bound = []

    def bind(target, source):
        bound.append(source.numel())
        return KernelCopy(source, DEVICE).into(target)

    staging = Staging(buffers, bind_copy=bind)
    for step in range(60):
        sizes = {NUM_TOKENS: 1 + step % 3, NUM_REQS: 1 + step % 2}
        host = staging.open(sizes)
        for name, value in (("ids", step), ("mask", step % 2), ("offsets", 2 * step)):
            host[name].fill_(value)
        staging.upload(sizes)
        views = {name: view.clone() for name, view in buffers.views(sizes).items()}
        assert {name: set(view.tolist()) for name, view in views.items()} == {
            "ids": {step},
            "mask": {bool(step % 2)},
            "offsets": {2 * step},
        }
    assert bound and copies_by_kernel(DEVICE), "the driver copied"
