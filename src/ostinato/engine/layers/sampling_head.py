"""The last op of a step: from logits to token ids that stay on the device, inside the graph.

One op for every batch: greedy rows cost what they cost without it, and rows that sample find their settings in static
slots, so a graph serves whatever its requests ask for. Called by the executor, in graphs and outside of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.engine.layers.kernel_choice import takes_triton
from ostinato.engine.sampling import NUM_SETTINGS, choose_greedy, choose_tokens
from ostinato.runtime.opaque import opaque_op

__all__ = ["SamplingHead"]


@opaque_op(mutates=("counts", "out", "peaks", "places", "counters"), name="choose_tokens")
def _choose_op(
    logits: Tensor,
    settings: Tensor,
    count_rows: Tensor,
    counts: Tensor,
    out: Tensor,
    peaks: Tensor,
    places: Tensor,
    counters: Tensor,
) -> None:
    if takes_triton(logits):
        from ostinato.engine.layers.triton.argmax import launch_argmax
        from ostinato.engine.layers.triton.sample import launch_sample

        launch_argmax(logits, out, peaks, places, counters)
        launch_sample(logits, settings, count_rows, counts, out)
    elif logits.is_cuda and torch.cuda.is_current_stream_capturing():
        choose_greedy(logits, out)  # see `SamplingHead.draws_in_graphs`
    else:
        choose_tokens(logits, settings, count_rows, counts, out)


class SamplingHead:
    """Chooses the token of each row; owns the scratch memory that this needs on CUDA.

    Args:
        max_rows: most rows of one call.
        device: where it runs.
    """

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            has_kernel = takes_triton(torch.empty(0, device=device))
            if has_kernel:
                from ostinato.engine.layers.triton.argmax import scratch

                self._scratch = scratch(max_rows, device)  # never grows: captured graphs hold its address
            else:
                nothing = torch.empty(0, device=device)
                self._scratch = (nothing, nothing.clone(), nothing.clone())
        self.draws_in_graphs = has_kernel or device.type != "cuda"
        """Whether a graph may hold rows that are not plainly greedy. Without triton the torch form must look at the
        rows from the host."""

    def warm_up(self, counts: Tensor, *dtypes: torch.dtype) -> None:
        """Compile what is needed for logits of ``dtypes``; ``counts`` are those of the calls to come."""
        settings = torch.zeros((1, NUM_SETTINGS), dtype=torch.float64, device=counts.device)
        ids = torch.zeros(2, dtype=torch.int64, device=counts.device)
        for dtype in dict.fromkeys(dtypes):
            logits = torch.zeros((1, counts.shape[1]), dtype=dtype, device=counts.device)
            self(logits, settings, ids[:1], counts, ids[1:])  # an engine's tokens begin at row 1: kernels know

    def __call__(self, logits: Tensor, settings: Tensor, count_rows: Tensor, counts: Tensor, out: Tensor) -> None:
        """See `choose_tokens`."""
        _choose_op(logits, settings, count_rows, counts, out, *self._scratch)
