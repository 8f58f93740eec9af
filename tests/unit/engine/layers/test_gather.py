"""Rows of a table, whichever kernel takes them; on CUDA the number of rows decides."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.layers import gather_rows

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("width", "dtype"), [(64, torch.float32), (2048, torch.bfloat16), (3, torch.bfloat16)])
def test_every_row_is_the_one_that_was_asked_for(device, width, dtype):
    table = torch.randn(100, width, device=device).to(dtype)
    for num_rows in (1, 2, 7, 16, 17, 40):
        rows = torch.randint(0, 100, (num_rows,), device=device)
        found = gather_rows(table, rows)
        assert found.shape == (num_rows, width) and found.is_contiguous()
        assert torch.equal(found, torch.stack([table[row] for row in rows.tolist()]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_gathers_what_stands_in_its_rows_at_replay():
    table, rows = torch.randn(100, 64, device="cuda"), torch.arange(8, device="cuda")
    gather_rows(table, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gather_rows(table, rows)
    rows.add_(50)
    graph.replay()
    assert torch.equal(found, table[50:58])
