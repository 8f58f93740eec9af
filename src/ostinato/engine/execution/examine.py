"""What the doctor says about an engine's own steps: made-up ones, as its mode, partition and compiler capture them.

The executor prepares each key as it does for warm-up; nothing is captured for serving. Rows are not varied,
since the metadata of a step fits its batch only. Called by ``ostinato doctor``.
"""

from __future__ import annotations

import torch

from ostinato.engine.attention import install_forward_context
from ostinato.engine.execution.executor import Executor
from ostinato.runtime import Diagnosis, GraphKey, RuntimeMode, diagnose

__all__ = ["examine_steps"]

_MODES = {RuntimeMode.FULL: ("full",), RuntimeMode.PIECEWISE: ("piecewise", "breakable")}


def examine_steps(executor: Executor) -> dict[str, Diagnosis]:
    """``{"decode": ..., "prefill": ..., "full prefill": ...}``, of the kinds of step that have graphs: decode
    in one graph, prompts in pieces, prompts in one graph."""
    found: dict[str, Diagnosis] = {}
    for key in reversed(executor.graphed.keys):  # smallest first
        name = _step_name(key)
        if name not in found and key.num_tokens > 1:
            found[name] = _examine(executor, key)
    return found


def _step_name(key: GraphKey) -> str:
    if key.uniform_query_len is not None:
        return "decode"
    return "prefill" if key.runtime_mode is RuntimeMode.PIECEWISE else "full prefill"


def _examine(executor: Executor, key: GraphKey) -> Diagnosis:
    mode = executor.graphed.mode
    try:
        with torch.inference_mode():
            args, kwargs = executor.graphed.made_up_call(key)
            return diagnose(
                executor.forward,
                args,
                kwargs,
                device=executor.graphed.device,
                modes=_MODES[key.runtime_mode],
                partition=mode.partition,
                compiler=mode.compiler,
                varies_rows=False,
            )
    finally:
        install_forward_context(None)
