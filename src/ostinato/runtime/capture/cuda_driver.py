"""What the CUDA driver knows of a captured graph and torch does not tell: its nodes and their kernels.

Read only.
"""

from __future__ import annotations

import ctypes

from ostinato.errors import CaptureError
from ostinato.runtime.memory import driver

__all__ = ["count_nodes", "describe_node", "graph_nodes", "kernel_params", "node_names"]

# CUgraphNodeType, cuda.h
_NODE_TYPES = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host",
    4: "graph",
    5: "empty",
    6: "wait event",
    7: "record event",
}


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2, cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def count_nodes(graph: int) -> int:
    """Nodes of the CUgraph at address ``graph``."""
    count = ctypes.c_size_t(0)
    _check(driver().cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    return count.value


def node_names(graph: int) -> list[str]:
    """Kernel names, or kinds of other nodes, in the driver's order."""
    return [describe_node(node) for node in graph_nodes(graph)]


def graph_nodes(graph: int) -> list[int | None]:
    """Handles of the nodes, in the driver's order."""
    count = ctypes.c_size_t(count_nodes(graph))
    nodes = (ctypes.c_void_p * count.value)()
    if count.value:
        _check(driver().cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    return list(nodes)


def describe_node(node: int | None) -> str:
    """A kernel's name, or the kind of another node."""
    kind = ctypes.c_int(-1)
    _check(driver().cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    label = _NODE_TYPES.get(kind.value, f"node type {kind.value}")
    return _kernel_name(node) or label if label == "kernel" else label


def kernel_params(node: int | None) -> _KernelNodeParams | None:
    """Launch sizes and parameters of a kernel node, None for another node. They belong to the graph."""
    kind = ctypes.c_int(-1)
    _check(driver().cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    params = _KernelNodeParams()
    if _NODE_TYPES.get(kind.value) != "kernel":
        return None
    if driver().cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(params)) != 0:
        return None
    return params


def _kernel_name(node: int | None) -> str | None:
    """The kernel's symbol, or None where this driver does not tell (cuFuncGetName came with CUDA 12.3)."""
    params = kernel_params(node)
    if params is None:
        return None
    name = ctypes.c_char_p()
    for getter, handle in (("cuFuncGetName", params.func), ("cuKernelGetName", params.kern)):
        call = getattr(driver(), getter, None)
        if handle and call is not None and call(ctypes.byref(name), ctypes.c_void_p(handle)) == 0 and name.value:
            return name.value.decode(errors="replace")
    return None


def _check(status: int) -> None:
    if status != 0:
        raise CaptureError("the driver cannot tell the nodes of a captured graph", status=status)
