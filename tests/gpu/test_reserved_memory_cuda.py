"""Device memory that comes after its address, and graphs captured in between."""

from __future__ import annotations

import gc

import pytest
import torch

from ostinato.errors import OutOfMemoryError
from ostinato.runtime import ReservedRegions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


def test_a_graph_captured_before_the_memory_came_writes_into_it() -> None:
    regions = ReservedRegions(num_regions=4, region_bytes=64 << 20, device=CUDA)
    assert regions.is_lazy and regions.backed_bytes == regions.granule_bytes
    cache = regions.memory.view(torch.bfloat16)
    assert cache.is_cuda and not cache[:, : regions.granule_bytes // 2].any()
    places = torch.zeros(8, dtype=torch.int64, device=CUDA)
    values = torch.ones(4, 8, dtype=torch.bfloat16, device=CUDA)
    cache.index_copy_(1, places, values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.index_copy_(1, places, values)
    free_before = torch.cuda.mem_get_info()[0]
    regions.back(33 << 20)
    assert regions.backed_bytes == 34 << 20
    assert free_before - torch.cuda.mem_get_info()[0] == pytest.approx(4 * (32 << 20), abs=8 << 20)
    last = (34 << 20) // 2 - 8
    places.copy_(torch.arange(last, last + 8, device=CUDA))
    values.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert cache[:, last : last + 8].eq(3).all()
    assert not cache[:, (2 << 20) // 2 : last].any(), "what comes later is zero too"


def test_memory_is_given_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    regions = ReservedRegions(num_regions=2, region_bytes=1 << 30, device=CUDA)
    regions.back(1 << 30)
    view = regions.memory[1]
    del regions
    gc.collect()
    assert before - torch.cuda.mem_get_info()[0] > 1 << 30, "a tensor keeps it"
    del view
    gc.collect()
    assert abs(before - torch.cuda.mem_get_info()[0]) < 64 << 20


def test_more_than_the_device_has_changes_nothing() -> None:
    total = torch.cuda.mem_get_info()[1]
    regions = ReservedRegions(num_regions=2, region_bytes=total, device=CUDA)
    before = torch.cuda.mem_get_info()[0]
    with pytest.raises(OutOfMemoryError, match="does not have"):
        regions.back(total)
    assert regions.backed_bytes == regions.granule_bytes
    assert abs(before - torch.cuda.mem_get_info()[0]) < 64 << 20
    regions.back(8 << 20)
