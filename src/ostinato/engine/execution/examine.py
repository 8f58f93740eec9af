"""What the doctor says about an engine's own steps: a made-up decode in one graph, a made-up prefill in pieces.

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
    """``{"decode": ..., "prefill": ...}``, of the kinds of step for which the executor plans graphs."""
    found: dict[str, Diagnosis] = {}
    for key in reversed(executor.graphed.keys):  # smallest first
        name = "decode" if key.runtime_mode is RuntimeMode.FULL else "prefill"
        if name not in found and key.num_tokens > 1:
            found[name] = _examine(executor, key)
    return found


def _examine(executor: Executor, key: GraphKey) -> Diagnosis:
    try:
        with torch.inference_mode():
            args, kwargs = executor.graphed.made_up_call(key)
            return diagnose(
                executor.forward,
                args,
                kwargs,
                device=executor.graphed.device,
                modes=_MODES[key.runtime_mode],
                varies_rows=False,
            )
    finally:
        install_forward_context(None)
