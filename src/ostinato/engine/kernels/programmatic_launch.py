"""Programmatic dependent launch (PDL): a kernel starts while the one before it still runs. Who can, and the marks.

A kernel launched with ``launch_pdl=True`` keeps three rules, without which results depend on timing:

1. Every program calls `gdc_wait` once, outside loops and before any early return. It returns when the kernel
   before it has completed, which by the same rule means all kernels before that one.
2. Before the wait, only memory is read that no earlier kernel of the step writes: weights. After a weight has
   been written, at least one ordinary kernel must be launched before the first that is launched so.
3. Nothing is written before the wait: an earlier kernel may still read it.

`gdc_launch_dependents` is a hint with no effect on memory, so it may come first. A kernel launched in the
ordinary way waits for all before it. Source: PTX ISA, griddepcontrol; CUDA programming guide, programmatic
dependent launch. Called by the kernels of attention and of the layers.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,no-redef"

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from functools import cache

import torch
import triton

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    _HAS_MARKS = True
except ImportError:  # triton before 3.3

    @triton.jit
    def gdc_launch_dependents():
        pass

    @triton.jit
    def gdc_wait():
        pass

    _HAS_MARKS = False

__all__ = ["can_launch_early", "gdc_launch_dependents", "gdc_wait", "launch_options"]


@cache
def _has_option() -> bool:
    try:
        from triton.backends.nvidia.compiler import CUDAOptions
    except ImportError:
        return False
    return is_dataclass(CUDAOptions) and any(field.name == "launch_pdl" for field in fields(CUDAOptions))


def _is_interpreted() -> bool:
    """Whether Triton interprets its kernels, whatever its setting takes for yes."""
    settings = getattr(getattr(triton, "knobs", None), "runtime", None)
    return bool(getattr(settings, "interpret", os.environ.get("TRITON_INTERPRET") == "1"))


@cache
def can_launch_early(device: torch.device) -> bool:
    """Whether kernels on ``device`` can be launched so: by its generation, and a triton that knows how.

    Compute capability 12 can too, but was seen to refuse such launches in a capture (sglang#18596).
    """
    if device.type != "cuda" or torch.version.hip is not None or _is_interpreted():
        return False
    return _HAS_MARKS and _has_option() and torch.cuda.get_device_capability(device)[0] in (9, 10)


def launch_options(is_early: bool) -> dict[str, bool]:
    """Launch options of a kernel whose ``USE_PDL`` is ``is_early``; older tritons know no such option."""
    return {"launch_pdl": True} if is_early else {}
