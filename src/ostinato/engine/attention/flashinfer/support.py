"""What FlashInfer's paged kernels can serve, checked before anything is allocated or compiled.

Facts of flashinfer-python 0.6.13: 16-bit queries and caches (its FA2 kernels assert it), head sizes that its merge
kernels are dispatched for, Ampere or newer for bfloat16. Called by `FlashInferAttention.reserve`.
"""

from __future__ import annotations

import torch

from ostinato.engine.attention.backend import AttentionShape
from ostinato.errors import ConfigError, DeviceUnavailableError

__all__ = ["HEAD_DIMS", "check_support", "uses_tensor_cores"]

HEAD_DIMS = (64, 128, 256)
_DTYPES = (torch.bfloat16, torch.float16)
_MIN_CAPABILITY = (8, 0)
_CUDA_CORE_GROUPS = (1, 2, 3)
"""Query heads a KV head for which decode on CUDA cores is compiled and not slower: from 4 rows on, tensor cores win."""


def uses_tensor_cores(shape: AttentionShape) -> bool:
    """Whether decode runs the tensor-core kernel, which is the module of prefill too: one compilation less."""
    return shape.num_heads // shape.num_kv_heads not in _CUDA_CORE_GROUPS


def check_support(shape: AttentionShape) -> None:
    """Refuse what the kernels cannot do.

    Raises:
        ConfigError: dtype or head size.
        DeviceUnavailableError: the GPU is too old.
    """
    if shape.dtype not in _DTYPES:
        raise ConfigError(
            f"attention backend 'flashinfer' has no kernels for {shape.dtype}",
            fix="use dtype='bfloat16' or 'float16', or attention='triton'",
            expected="bfloat16 or float16",
            got=shape.dtype,
        )
    if shape.head_dim not in HEAD_DIMS:
        raise ConfigError(
            f"attention backend 'flashinfer' has no kernels for heads of {shape.head_dim}",
            fix="use attention='triton'",
            expected=", ".join(map(str, HEAD_DIMS)),
            got=shape.head_dim,
        )
    if shape.device.type == "cuda":
        capability = torch.cuda.get_device_capability(shape.device)
        if capability < _MIN_CAPABILITY:
            raise DeviceUnavailableError(
                "attention backend 'flashinfer' needs compute capability 8.0 or more",
                fix="use attention='torch'",
                got=f"{capability[0]}.{capability[1]}",
            )
