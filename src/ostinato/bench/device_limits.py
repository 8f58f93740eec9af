"""What this device reaches: copy bandwidth and matrix throughput, measured in the run that uses them."""

from __future__ import annotations

import statistics

import torch

from ostinato.bench.clock import step_times_ms
from ostinato.bench.floor import DeviceLimits

__all__ = ["measure_limits"]

_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}  # far beyond any cache
_MATRIX = {"cuda": 8192, "cpu": 512}
_REPEATS = 10


def measure_limits(device: torch.device, dtype: torch.dtype) -> DeviceLimits:
    """Median of a few copies and a few square products in ``dtype``; takes a tenth of a second on a GPU."""
    copy_bytes_per_s, matmul_flops_per_s = _copy(device), _matmul(device, dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the engine takes its cache from what is free
    return DeviceLimits(copy_bytes_per_s=copy_bytes_per_s, matmul_flops_per_s=matmul_flops_per_s)


def _copy(device: torch.device) -> float:
    num_bytes = _COPY_BYTES[device.type]
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times_ms = step_times_ms(lambda: target.copy_(source), device, _REPEATS)
    return 2 * num_bytes / (statistics.median(times_ms) / 1e3)


def _matmul(device: torch.device, dtype: torch.dtype) -> float:
    size = _MATRIX[device.type]
    factor = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty_like(factor)
    times_ms = step_times_ms(lambda: torch.mm(factor, factor, out=out), device, _REPEATS)
    flops: float = 2 * size**3 / (statistics.median(times_ms) / 1e3)
    return flops
