"""Cache tensors."""

from __future__ import annotations

import torch

from ostinato.engine.kvcache import allocate_caches, bytes_per_token


def make(**changes):
    shape = {"num_layers": 3, "num_pages": 5, "page_size": 4, "num_kv_heads": 2, "head_dim": 8}
    return allocate_caches(**{**shape, "dtype": torch.float16, "device": "cpu", **changes})


def test_shapes_and_contents():
    caches = make()
    assert len(caches) == 3
    for cache in caches:
        assert cache.key.shape == cache.value.shape == (5, 4, 2, 8)
        assert cache.key.is_contiguous() and cache.value.is_contiguous()
        assert cache.key.dtype == torch.float16
        assert not cache.key.any() and not cache.value.any()
    assert (caches[0].num_pages, caches[0].page_size, caches[0].num_kv_heads, caches[0].head_dim) == (5, 4, 2, 8)


def test_no_two_tensors_share_memory():
    tensors = [t for cache in make() for t in (cache.key, cache.value)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [t.unique().tolist() for t in tensors] == [[float(n)] for n in range(len(tensors))]


def test_size_is_what_the_budget_predicts():
    storage = make()[0].key.untyped_storage()
    assert storage.nbytes() == 5 * 4 * bytes_per_token(num_layers=3, num_kv_heads=2, head_dim=8, element_bytes=2)
