"""The simulated pool recycles what the program drops, and dead memory reads as poison."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime.capture.simulated_memory import ExternalMemory, SimulatedPool, poison


def tensor_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def test_poison_is_nan_and_minus_one():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = torch.zeros(3, dtype=dtype)
        poison(x.untyped_storage())
        assert x.isnan().all()
    x = torch.zeros(3, dtype=torch.int64)
    poison(x.untyped_storage())
    assert x.tolist() == [-1] * 3


def test_two_storages_one_memory():
    block, storage = SimulatedPool().take(100)
    tensor_of(storage)[:100].fill_(7)
    assert tensor_of(block.recorded)[:100].eq(7).all()
    assert storage._cdata != block.recorded._cdata


def test_memory_is_aligned_as_torch_aligns_it():
    pool = SimulatedPool()
    blocks = [pool.take(n)[0] for n in (1, 513, 4096)]
    assert all(block.recorded.data_ptr() % 64 == 0 for block in blocks)
    assert [block.capacity_bytes for block in blocks] == [512, 1024, 4096]


def test_a_block_is_in_use_as_long_as_the_program_holds_it():
    pool = SimulatedPool()
    block, storage = pool.take(100)
    view = tensor_of(storage)[5:]
    del storage
    assert pool.take(100)[0] is not block
    assert pool.find(view.untyped_storage()) is block
    del view
    assert pool.take(100)[0] is block


def test_best_fit():
    pool = SimulatedPool()
    (large, s1), (small, s2) = pool.take(4096), pool.take(512)
    del s1, s2
    assert pool.take(100)[0] is small
    assert pool.take(1024)[0] is large


def test_what_nobody_holds_is_given_back():
    pool = SimulatedPool()
    (_, kept), (_, dropped) = pool.take(4096), pool.take(512)
    del dropped
    pool.trim()
    assert pool.reserved_bytes == 4096 and pool.find(kept) is not None
    assert pool.take(100)[0].capacity_bytes == 512
    assert pool.reserved_bytes == 4096 + 512


def test_reclaimed_blocks_are_poisoned():
    pool = SimulatedPool()
    block, storage = pool.take(8)
    tensor_of(storage).zero_()
    del storage
    pool.reclaim(poisoned=True)
    assert tensor_of(block.recorded)[:8].eq(255).all()


def test_foreign_memory_is_not_the_pools():
    pool = SimulatedPool()
    pool.take(64)
    assert pool.find(torch.empty(64).untyped_storage()) is None


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=30))
def test_live_tensors_never_share_memory(steps):
    pool, live = SimulatedPool(), []
    for nbytes, drops in steps:
        if drops and live:
            live.pop(0)
        storage = pool.take(nbytes)[1]
        live.append((tensor_of(storage)[:nbytes].fill_(len(live)), len(live)))
        del storage
        for tensor, value in live:
            tensor.fill_(value % 251)
    assert all(tensor.eq(value % 251).all() for tensor, value in live)
    assert pool.reserved_bytes >= sum(tensor.numel() for tensor, _ in live)


def external(tensor, *, is_constant=False):
    memory = ExternalMemory(tensor, is_constant=is_constant)
    return memory, memory.alias(tensor)


def test_a_dead_external_is_poisoned():
    x = torch.ones(4)
    memory, alias = external(x)
    memory.poison_if_dead()
    assert alias.tolist() == [1.0] * 4
    del x
    memory.poison_if_dead()
    assert alias.isnan().all()


def test_any_view_keeps_an_external_alive():
    x = torch.ones(4, 4)
    memory, alias = external(x)
    row = x[1]
    del x
    memory.poison_if_dead()
    assert not alias.isnan().any()
    del row
    memory.poison_if_dead()
    assert alias.isnan().all()


def test_a_view_of_a_dead_base_is_dead():
    memory, alias = external(torch.ones(4, 4)[1:].t())
    memory.poison_if_dead()
    assert alias.isnan().all()


def test_constants_never_die():
    memory, alias = external(torch.ones(4), is_constant=True)
    memory.poison_if_dead()
    assert alias.tolist() == [1.0] * 4
