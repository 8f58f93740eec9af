"""Whether this torch and this machine can do a partition, asked before anything is run.

Importing a compiler takes seconds and can fail in many ways, all of which would otherwise surface in the middle of
warm-up, or from within the compiler. Called when a runner that needs one is made, and by nobody else.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ostinato.errors import UnsupportedPartitionError
from ostinato.runtime.keys import Compiler, Partition

__all__ = ["require_support"]

_UNTRACED: Final = "use partition='breakable' with compile='none', which need no compiler"
_UNCOMPILED: Final = "use compile='none' with partition='fx' or 'breakable'"


def require_support(partition: Partition, compiler: Compiler, *, backend: str) -> None:
    """Return if a callable can be traced here, and be compiled if ``partition`` or ``compiler`` asks for it.

    Args:
        backend: the capture backend's name.

    Raises:
        UnsupportedPartitionError: it cannot; the message says why, and what would work.
    """
    is_compiled = partition is Partition.INDUCTOR or compiler is Compiler.INDUCTOR
    if is_compiled and backend == "simulated":
        raise UnsupportedPartitionError(
            "Inductor's CPU kernels bypass the dispatcher, so simulated graphs cannot record them",
            fix="use partition='fx' with compile='none', or partition='breakable'",
        )
    asked = f"partition {partition.value!r}" + (f" with compile={compiler.value!r}" if compiler.value != "none" else "")
    _require_dynamo(asked)
    if is_compiled:
        _load("torch._inductor.compile_fx", asked, fix=f"{_UNCOMPILED}, or install a torch that has Inductor")
        if backend == "cuda":
            _load("triton", asked, fix=f"pip install triton, in which Inductor writes its kernels, or {_UNCOMPILED}")


def _require_dynamo(asked: str) -> None:
    dynamo = _load("torch._dynamo", asked, fix=f"{_UNTRACED}, or install a torch that has Dynamo")
    try:
        dynamo.eval_frame.check_if_dynamo_supported()
    except RuntimeError as error:  # this Python is too new, or built without the GIL
        raise _unsupported(asked, str(error), fix=_UNTRACED) from error
    if dynamo.config.disable:
        raise _unsupported(
            asked,
            "Dynamo is switched off",
            fix=f"unset TORCH_COMPILE_DISABLE (torch._dynamo.config.disable), or {_UNTRACED}",
        )


def _load(module: str, asked: str, *, fix: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken installation raises more than ImportError
        raise _unsupported(asked, f"{module} cannot be imported: {error}", fix=fix) from error


def _unsupported(asked: str, why: str, *, fix: str) -> UnsupportedPartitionError:
    return UnsupportedPartitionError(f"{asked} is not possible here: {why}", fix=fix)
