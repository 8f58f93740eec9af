"""Mapped tensors to a GPU: the same bits by pinned buffers on side streams, in every dtype and around chunk edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import load_model
from ostinato.engine.weights import copy_tensors, parallel_copy
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_bits_as_a_plain_copy(
    monkeypatch: pytest.MonkeyPatch, stored: torch.dtype, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(parallel_copy, "_CHUNK_BYTES", 1 << 16)  # many rounds of both buffers
    sizes = (1, 16383, 16384, 16385, 32768, 32769, 1_000_003)
    sources = [torch.randn(size).to(stored) for size in sizes]
    expected = [
        torch.empty(size, dtype=dtype, device=CUDA).copy_(source) for size, source in zip(sizes, sources, strict=True)
    ]
    for _ in range(5):
        targets = [torch.full((size,), 7.0, dtype=dtype, device=CUDA) for size in sizes]
        copy_tensors(list(zip(targets, sources, strict=True)))
        for one, other in zip(targets, expected, strict=True):
            assert torch.equal(one, other)


def test_what_ran_before_on_the_memory_of_a_target_comes_first() -> None:
    """The target is written by a long queue of kernels; the copies, on other streams, must come behind it."""
    target, source = torch.empty(1 << 24, device=CUDA), torch.arange(1 << 24, dtype=torch.float32)
    busy = torch.randn(4096, 4096, device=CUDA)
    for _ in range(50):
        busy = busy @ busy * 1e-3
    target.copy_(busy.sum().expand(1 << 24))
    copy_tensors([(target, source)])
    assert torch.equal(target.cpu(), source)


def test_what_is_no_flat_piece_of_memory() -> None:
    table, source = torch.zeros(4, 6, device=CUDA), torch.randn(4, 3)
    copy_tensors([(table[:, 2:5], source), (table[:, :2], torch.ones(2, 4).t())])
    assert torch.equal(table[:, 2:5].cpu(), source) and table[:, :2].eq(1).all() and not table[:, 5].any()


def test_a_failure_leaves_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    copy, count = parallel_copy._copy_on_host, iter(range(1000))

    def fail(target: torch.Tensor, source: torch.Tensor) -> None:
        if next(count) == 5:
            raise OSError("planted")
        copy(target, source)

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fail)
    pairs = [(torch.empty(1 << 22, device=CUDA), torch.randn(1 << 22)) for _ in range(8)]
    with pytest.raises(OSError, match="planted"):
        copy_tensors(pairs)
    torch.cuda.synchronize()
    monkeypatch.setattr(parallel_copy, "_copy_on_host", copy)
    copy_tensors(pairs)
    assert all(torch.equal(target.cpu(), source) for target, source in pairs)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_model_on_the_device_is_the_model_on_the_host(tmp_path: Path, family: str) -> None:
    """Tied heads (qwen2) among them."""
    folder = write_tiny_model(tmp_path, family)
    host, device = (
        load_model(EngineConfig(model=str(folder), device=kind, dtype="bfloat16")).model for kind in ("cpu", "cuda")
    )
    for name, parameter in host.named_parameters():
        assert torch.equal(parameter, device.get_parameter(name).cpu()), name
