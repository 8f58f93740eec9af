"""Host time of an engine step: what the CPU does while the device does nothing for it. One function.

Wraps the facade's ``run``, which holds all device work of a step but sampling: on CUDA the device is waited for right
after it, and that wait is taken out; on the CPU graphs run on the host, and the whole call is taken out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ostinato.bench.clock import synchronize
from ostinato.bench.engine_probe import facade_of
from ostinato.engine.request import SamplingParams

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["host_us_per_step"]


def host_us_per_step(llm: LLM, prompts: Sequence[Sequence[int]], *, num_steps: int = 16) -> float | None:
    """Median microseconds of host work in a decode step of all ``prompts`` together; None if they never ran together.

    Args:
        llm: idle; it has finished every request when this returns.
        prompts: token ids; as many as the batch should have.
        num_steps: decode steps to measure, after the prompts' own steps.
    """
    graphed = facade_of(llm)
    original = graphed.run
    waited = 0.0

    def run(decision: Any) -> Any:
        nonlocal waited
        began = time.perf_counter()
        result = original(decision)
        launched = time.perf_counter()
        synchronize(graphed.device)
        is_host_work = graphed.device.type == "cuda"
        waited += time.perf_counter() - (launched if is_host_work else began)
        return result

    params = SamplingParams(max_tokens=num_steps + 1, ignore_eos=True)
    for prompt in prompts:
        llm.add_request(list(prompt), params)
    times: list[float] = []
    graphed.run = run  # type: ignore[method-assign]
    try:
        while llm.has_work():
            waited = 0.0
            began = time.perf_counter()
            updates = llm.step()
            elapsed = time.perf_counter() - began - waited
            if len(updates) == len(prompts) and all(u.finish_reason is None for u in updates):
                times.append(elapsed * 1e6)
    finally:
        del graphed.run  # the method of the class shows again
    decodes = times[1:] or times  # the first full step may hold the last prompts
    return statistics.median(decodes) if decodes else None
