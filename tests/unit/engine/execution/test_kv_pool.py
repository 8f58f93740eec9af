"""The KV cache: addresses before capture, its size from what is left after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import memory_budget
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.engine.models import ModelConfig
from ostinato.errors import OutOfMemoryError
from ostinato.runtime import ReservedRegions
from ostinato.testing.tiny_models import tiny_config

MODEL = ModelConfig.from_hf(tiny_config("llama"))
TOKEN_BYTES = 2 * 2 * 2 * 32 * 4  # key and value, layers, heads, head size, float32
CONFIG = EngineConfig(page_size=16, max_model_len=100, max_num_reqs=4, max_num_batched_tokens=64)
CPU = torch.device("cpu")
SetFree = Callable[[float], None]


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> SetFree:
    """Say how much is free, in tokens."""

    def set_to(tokens: float) -> None:
        monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: int(tokens * TOKEN_BYTES))

    return set_to


def make(**changes: int) -> KvPool:
    return KvPool(dataclasses.replace(CONFIG, **changes), MODEL, dtype=torch.float32, device=CPU)


def test_the_size_comes_from_what_is_free_after_capture(set_free: SetFree) -> None:
    set_free(1e6)
    pool = make()
    addresses = [cache.key.data_ptr() for cache in pool.reserved]
    assert (pool.max_pages, pool.num_pages) == (1 + 4 * 7, 0), "no memory yet"
    set_free(400)  # the graphs have taken the rest; the cache gets half on a CPU
    pool.settle()
    assert (pool.num_pages, pool.num_tokens) == (12, 11 * 16)
    assert [cache.key.data_ptr() for cache in pool.pages()] == addresses
    assert {cache.num_pages for cache in pool.pages()} == {12}
    assert pool.num_bytes == 12 * 16 * TOKEN_BYTES


def test_no_more_than_requests_can_use(set_free: SetFree) -> None:
    set_free(1e6)
    pool = make()
    pool.settle()
    assert pool.num_pages == pool.max_pages == 1 + 4 * 7


def test_graphs_that_leave_too_little_are_said(set_free: SetFree) -> None:
    set_free(1e6)
    pool = make()
    set_free(100)
    with pytest.raises(OutOfMemoryError, match=r"112 tokens needs .* and 32 tokens fit") as caught:
        pool.settle()
    assert "max_model_len" in caught.value.fix


def test_what_was_asked_for_is_checked_again_after_capture(set_free: SetFree) -> None:
    set_free(140)
    pool = make(kv_tokens=100)
    assert (pool.max_pages, pool.num_pages) == (8, 0), "more than half of what is free may still be asked for"
    set_free(2 * 8 * 16)
    pool.settle()
    assert (pool.num_pages, pool.num_tokens) == (8, 112)


def test_graphs_that_leave_less_than_was_asked_for_are_said(set_free: SetFree) -> None:
    set_free(1e6)
    pool = make(kv_tokens=100)
    set_free(100)
    with pytest.raises(OutOfMemoryError, match=r"112 tokens needs .* and 32 tokens fit") as caught:
        pool.settle()
    assert "lower kv_tokens" in caught.value.fix


def test_what_was_asked_for_is_there_at_once_where_memory_cannot_come_later(
    set_free: SetFree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReservedRegions, "can_be_lazy", staticmethod(lambda _device: False))
    set_free(1e6)
    pool = make(kv_tokens=100)
    assert (pool.num_pages, pool.num_tokens) == (8, 112)
    set_free(0)
    pool.settle()
    assert pool.num_pages == 8, "what was promised is kept"


def test_more_than_fits_is_refused_before_anything_is_captured(set_free: SetFree) -> None:
    set_free(200)
    with pytest.raises(OutOfMemoryError, match="lower kv_tokens"):
        make(kv_tokens=1000)
    set_free(50)
    with pytest.raises(OutOfMemoryError, match="lower max_model_len"):
        make()


def test_a_device_that_cannot_wait_takes_its_share_at_once(set_free: SetFree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReservedRegions, "can_be_lazy", staticmethod(lambda _device: False))
    set_free(400)
    pool = make()
    assert pool.num_pages == pool.max_pages == 12, "half of what is free, as a guess"
    set_free(0)
    pool.settle()
    assert pool.num_pages == 12


def test_memory_comes_in_whole_granules(set_free: SetFree) -> None:
    set_free(1e6)
    pool = make()
    pool._regions.granule_bytes = 5 * 16 * 2 * 32 * 4  # five pages of a layer's keys
    pool._regions.region_bytes = 6 * pool._regions.granule_bytes
    set_free(2 * 13 * 16)  # room for thirteen pages
    pool.settle()
    assert pool.num_pages == 10 and pool.num_bytes == 10 * 16 * TOKEN_BYTES


def test_the_addresses_are_zeroed_and_apart() -> None:
    pool = make(kv_tokens=64)
    pool.settle()
    tensors = [t for cache in pool.pages() for t in (cache.key, cache.value)]
    assert not any(t.any() for t in tensors)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    assert [t.unique().tolist() for t in tensors] == [[float(n + 1)] for n in range(len(tensors))]


def test_memory_goes_and_comes_back(set_free: SetFree, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(1e6)
    pool = make(kv_tokens=100)
    pool.settle()
    num_bytes, addresses = pool.num_bytes, [cache.key.data_ptr() for cache in pool.pages()]

    def give_back() -> int:  # as regions do that are mapped
        pool._regions.backed_bytes = 1
        return num_bytes - 1

    monkeypatch.setattr(pool._regions, "give_back", give_back)
    assert pool.give_back() == num_bytes - 1 and pool.num_bytes < num_bytes
    assert pool.num_pages == 8, "the scheduler counts on them"
    with monkeypatch.context() as patch:

        def refuse(_region_bytes: int) -> None:
            raise OutOfMemoryError("planted")

        patch.setattr(pool._regions, "back", refuse)
        with pytest.raises(OutOfMemoryError, match="112 tokens does not fit any more"):
            pool.take_back()
    pool.take_back()
    assert pool.num_bytes == num_bytes and [cache.key.data_ptr() for cache in pool.pages()] == addresses
