"""Host values in a captured CUDA graph: launch sizes of its kernels, and the words of their parameters.

Through the driver, like `cuda_driver`. A parameter is raw bytes: a number, an address, or a structure of both with
unused bytes between. Words that are an address of device memory are blanked, since intermediates lie anew in each
capture; what else changes for no reason, the caller finds out by capturing alike twice. The sizes of parameters are
told since CUDA 12.4; before, only launch sizes are.
"""

from __future__ import annotations

import ctypes
import struct

from ostinato.runtime.capture.backend import BakedCall
from ostinato.runtime.capture.cuda_driver import describe_node, graph_nodes, kernel_params
from ostinato.runtime.memory import driver

__all__ = ["baked_calls"]

_POINTER_ATTRIBUTE_MEMORY_TYPE = 2  # CUpointer_attribute, cuda.h
_MOST_PARAMETERS = 4096  # the driver ends the list much earlier


def baked_calls(graph: int) -> list[BakedCall]:
    """One entry for each node of the CUgraph at address ``graph``, in the driver's order."""
    return [_baked_call(node) for node in graph_nodes(graph)]


def _baked_call(node: int | None) -> BakedCall:
    name, params = describe_node(node), kernel_params(node)
    if params is None:
        return BakedCall(name, ())
    sizes = (
        ("grid", tuple(params.grid)),
        ("block", tuple(params.block)),
        ("shared_bytes", int(params.shared_bytes)),
    )
    words: list[tuple[str, int]] = []
    if params.params:
        pointers = ctypes.cast(params.params, ctypes.POINTER(ctypes.c_void_p))
        for index, size in enumerate(_sizes(params.func, params.kern)):
            address = pointers[index]
            if address:
                words += _words(index, ctypes.string_at(address, size))
    return BakedCall(name, sizes, tuple(words))


def _sizes(func: int | None, kernel: int | None) -> list[int]:
    """Bytes of each parameter; empty where the driver does not tell."""
    for getter, handle in (("cuFuncGetParamInfo", func), ("cuKernelGetParamInfo", kernel)):
        call = getattr(driver(), getter, None)
        if call is None or not handle:
            continue
        sizes: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while len(sizes) < _MOST_PARAMETERS:
            place = ctypes.c_size_t(len(sizes))
            if call(ctypes.c_void_p(handle), place, ctypes.byref(offset), ctypes.byref(size)) != 0:
                break
            sizes.append(size.value)
        if sizes:
            return sizes
    return []


def _words(index: int, raw: bytes) -> list[tuple[str, int]]:
    """``(place, value)`` of each word of four bytes; addresses of device memory read 0."""
    found: list[tuple[str, int]] = []
    position = 0
    while position < len(raw):
        if position % 8 == 0 and position + 8 <= len(raw):
            (wide,) = struct.unpack_from("<Q", raw, position)
            if _is_address(wide):
                position += 8
                continue
        chunk = raw[position : position + 4]
        found.append((f"parameter {index}, byte {position}", int.from_bytes(chunk, "little", signed=True)))
        position += 4
    return found


def _is_address(value: int) -> bool:
    if value < 1 << 20:  # no address is so low
        return False
    kind = ctypes.c_uint(0)
    call = driver().cuPointerGetAttribute
    status = call(ctypes.byref(kind), ctypes.c_int(_POINTER_ATTRIBUTE_MEMORY_TYPE), ctypes.c_uint64(value))
    return bool(status == 0 and kind.value != 0)
