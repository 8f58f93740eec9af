"""Judge one op call: may it stand in a captured graph, and if not, why.

Reads the rows of `rules`, torch's own operator tags, and the arguments where the answer depends on them
(boolean indices, copies to the host). Called by the capture backends and, later, by doctor and splitter.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ostinato.runtime.nest import tensors
from ostinato.runtime.ops.rules import CONDITIONAL_RULES, FUNCTION_RULES, OP_RULES, BlockReason, OpRule, Verdict

__all__ = ["classify_function", "classify_op", "op_name"]

_INDEX_OPS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_COPY_OPS = {"aten::_to_copy", "aten::copy_", "aten::copy", "aten::to"}
_RESIZE_OPS = {"aten::resize_", "aten::resize_as_"}
_MASK_FIX = "use torch.where or masked_fill, or move the call into a @graph_break function"


def op_name(func: torch._ops.OpOverload) -> str:
    """``aten::add`` for ``torch.ops.aten.add.Tensor``."""
    return func._schema.name


def classify_op(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, device_type: str
) -> OpRule | None:
    """The rule that forbids this call in a capture on ``device_type``, or None if it may be captured.

    Reading a tensor that lives on the host is harmless while a GPU captures: the value is there already.
    """
    name = op_name(func)
    if name not in _COPY_OPS and all(t.device.type != device_type for t in tensors((args, kwargs))):
        return None
    rule = OP_RULES.get(name)
    if rule is not None:
        if name == "aten::repeat_interleave" and kwargs.get("output_size") is not None:
            return None
        return rule
    if name in _INDEX_OPS:
        return _classify_index(name, args)
    if name in _COPY_OPS:
        return _classify_copy(name, args, kwargs)
    if name in _RESIZE_OPS:
        return _classify_resize(name, args)
    return _classify_tags(func)


def classify_function(name: str) -> OpRule | None:
    """The rule that forbids a Python-level call such as ``Tensor.tolist`` in a capture."""
    return FUNCTION_RULES.get(name)


def _classify_index(name: str, args: tuple[Any, ...]) -> OpRule | None:
    indices = args[1] if len(args) > 1 else ()
    has_mask = any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)
    if not has_mask:
        return None
    if name != "aten::index" and len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1:
        return None  # x[mask] = scalar lowers to masked_fill: no shape depends on data
    return OpRule(Verdict.UNFRIENDLY, BlockReason.DATA_DEPENDENT_SHAPE, _MASK_FIX)


def _classify_copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpRule | None:
    source = args[1] if name in ("aten::copy_", "aten::copy") else args[0]
    if name in ("aten::copy_", "aten::copy"):
        target = args[0].device
    else:
        device = kwargs.get("device")
        target = source.device if device is None else torch.device(device)
    if source.device.type == target.type:
        return None
    if target.type == "cpu":
        return OpRule(Verdict.UNFRIENDLY, BlockReason.HOST_SYNC, FUNCTION_RULES["Tensor.cpu"].fix)
    if source.device.type == "cpu" and not source.is_pinned():
        fix = "copy host data into a static buffer before the step, or use pinned memory"
        return OpRule(Verdict.UNFRIENDLY, BlockReason.HOST_SYNC, fix)
    return None


def _classify_resize(name: str, args: tuple[Any, ...]) -> OpRule | None:
    """What grows past its storage moves, and every graph that has its address keeps the old one."""
    tensor, size = args[0], args[1].shape if name == "aten::resize_as_" else args[1]
    needed = (tensor.storage_offset() + math.prod(size)) * tensor.element_size()
    if needed <= tensor.untyped_storage().nbytes():
        return None
    return OpRule(Verdict.UNFRIENDLY, BlockReason.ALLOCATION, CONDITIONAL_RULES[name].fix)


def _classify_tags(func: torch._ops.OpOverload) -> OpRule | None:
    tags = func.tags
    if torch.Tag.dynamic_output_shape in tags:
        return OpRule(Verdict.UNFRIENDLY, BlockReason.DATA_DEPENDENT_SHAPE, _MASK_FIX)
    if torch.Tag.data_dependent_output in tags:
        return OpRule(Verdict.UNFRIENDLY, BlockReason.HOST_SYNC, FUNCTION_RULES["Tensor.item"].fix)
    return None
