"""Attention backends by name. A backend's module, and the compiler behind it, is imported when asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from ostinato.engine.attention.backend import AttentionBackend
from ostinato.errors import DeviceUnavailableError, UnknownNameError

__all__ = ["get_attention_backend"]

# name -> (module, class)
_BACKENDS = {
    "torch": ("ostinato.engine.attention.torch_backend", "TorchAttention"),
    "triton": ("ostinato.engine.attention.triton.backend", "TritonAttention"),
    "flashinfer": ("ostinato.engine.attention.flashinfer.backend", "FlashInferAttention"),
}
# Those that run on CUDA alone -> how to get the package of the same name.
_CUDA_ONLY = {"triton": "install triton", "flashinfer": "install ostinato[cuda]"}


def get_attention_backend(name: str, device_type: str) -> AttentionBackend:
    """A new backend.

    Args:
        name: "torch", "triton", "flashinfer", or "auto" (triton on CUDA, torch elsewhere).
        device_type: "cpu" or "cuda".

    Raises:
        UnknownNameError: no backend has this name.
        DeviceUnavailableError: the backend does not run on ``device_type``, or its package is missing.
    """
    if name == "auto":
        name = "triton" if device_type == "cuda" and find_spec("triton") else "torch"
    if name not in _BACKENDS:
        raise UnknownNameError.of("attention backend", name, [*_BACKENDS, "auto"])
    if name in _CUDA_ONLY and device_type != "cuda":
        raise DeviceUnavailableError(
            f"attention backend {name!r} does not run on {device_type}", fix="use attention='torch' or a CUDA device"
        )
    if name in _CUDA_ONLY and find_spec(name) is None:
        raise DeviceUnavailableError(
            f"attention backend {name!r} needs the {name} package", fix=f"{_CUDA_ONLY[name]} or use attention='torch'"
        )
    module, cls = _BACKENDS[name]
    backend: AttentionBackend = getattr(import_module(module), cls)()
    return backend
