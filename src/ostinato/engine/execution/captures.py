"""`Captures`: an executor's graphs: captured at a start or between steps, given up, and what each takes of the device.

Everything here runs made-up steps, so no step of a request may be in flight, and afterwards the executor is as it was.
Who decides when a graph comes is above (`EngineGraphs`, `BackgroundCapture`, `EngineSleep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from ostinato.engine.config import check_fits_cache
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.memory_budget import SHARE_BEFORE_CAPTURE
from ostinato.engine.execution.sizes import out_of_reach
from ostinato.engine.layers.linear_tiles import ROW_BUCKETS
from ostinato.runtime import CaptureCost, GraphKey, Ledger, PlannedSizes, ResizeReport, RuntimeMode

__all__ = ["Captures"]


class Captures:
    """The graphs of ``executor``, and the size of its cache beside them."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.seconds = 0.0
        """That captures have taken since the start, or since all were captured anew."""
        self.costs: Mapping[GraphKey, CaptureCost] = {}
        """What each captured key has taken of the device."""

    def start(self, *, on_key: Callable[[GraphKey], None] | None = None) -> None:
        """Compile, warm up and capture everything that serving needs; the KV cache gets what is left.

        Args:
            on_key: told of each key once it is warm and once it is captured.
        """
        with self._made_up_steps():
            self.executor.warm_up_kernels()
        self.capture(on_key=on_key)
        self.executor.kv_pool.settle()
        self._retire_out_of_reach()

    def start_later(self, *, graph_bytes: int = 0) -> None:
        """Serve at once, by eager steps; graphs come by `capture_late`.

        Args:
            graph_bytes: what they will take, if that is known; else the KV cache leaves room by a guess.
        """
        graphed, kv_pool = self.executor.graphed, self.executor.kv_pool
        graphed.defer_capture()
        if graph_bytes:
            kv_pool.settle(less_bytes=graph_bytes)
        else:
            kv_pool.settle(share=SHARE_BEFORE_CAPTURE[graphed.device.type])
        self._retire_out_of_reach()

    def capture(self, *, on_key: Callable[[GraphKey], None] | None = None) -> None:
        """Warm up and capture every key that is pending; see `start`."""
        graphed = self.executor.graphed
        with self._made_up_steps():
            graphed.warm_up(on_key=on_key)
            if graphed.keys:
                report = graphed.capture(on_key=on_key)
                self.seconds, self.costs = report.seconds, report.costs
            if graphed.device.type == "cuda":
                self._run_eager_steps()

    def capture_late(self, key: GraphKey) -> bool:
        """Warm up and capture ``key``, which is pending; whether that went well."""
        self.executor.finish_shadow()
        with self._made_up_steps():
            report = self.executor.graphed.capture_late([key])
        self.seconds += report.seconds
        self.costs = {**self.costs, **report.costs}
        return bool(report.captured)

    def resize(
        self,
        *,
        sizes: tuple[int, ...] | None,
        decode_sizes: tuple[int, ...] | None,
        on_key: Callable[[GraphKey], None] | None = None,
    ) -> ResizeReport:
        """Capture these sizes and give the others back.

        Raises: what `Graphed.resize` does, and a `ConfigError` for sizes that the KV cache cannot hold.
        """
        graphed = self.executor.graphed
        planned = PlannedSizes.of(graphed.keys)
        for name, chosen, now in (
            ("decode_sizes", decode_sizes, planned.decode),
            ("token_sizes", sizes, planned.mixed),
        ):
            new = tuple(sorted(set(chosen or ()) - set(now)))
            num_pages, page_size = self.executor.num_pages - 1, self.executor.limits.page_size
            check_fits_cache(name, new or None, num_pages=num_pages, page_size=page_size)
        self.executor.finish_shadow()
        with self._made_up_steps():
            report = graphed.resize(sizes=sizes, decode_sizes=decode_sizes, on_key=on_key)
        self._forget(report.retired)
        self.costs = {**self.costs, **report.costs}
        return report

    def release(self) -> None:
        """Give all graphs back; `Graphed.release`."""
        self.executor.graphed.release()
        self.costs = {}

    def sizes(self) -> dict[str, list[int]]:
        """Planned: "decode_sizes" in requests, "token_sizes" of mixed steps in tokens."""
        planned = PlannedSizes.of(self.executor.graphed.keys)
        return {"decode_sizes": list(planned.decode), "token_sizes": list(planned.mixed)}

    @property
    def executable_bytes(self) -> int:
        """What left the device beside the allocator at the captures: executables, and kernels loaded for them."""
        return sum(cost.driver_bytes for cost in self.costs.values())

    def memory(self) -> Ledger:
        """Bytes by owner, measured now; on CUDA "executables" may hold kernels that were loaded at capture."""
        ledger = self.executor.memory()
        ledger.enter("executables", self.executable_bytes)
        return ledger

    @contextmanager
    def _made_up_steps(self) -> Iterator[None]:
        try:
            with torch.inference_mode():
                yield
        finally:
            self.executor.leave_step()

    def _run_eager_steps(self) -> None:
        """Run the largest step that there can be, so that the allocator has memory for it, and one for each kernel of
        linear layers: they may have no graph, and none should be compiled while requests wait."""
        executor = self.executor
        most = executor.limits.max_num_batched_tokens
        for num_tokens in (most, *(size for size in ROW_BUCKETS if size < most)):
            key = GraphKey(runtime_mode=RuntimeMode.PIECEWISE, num_tokens=num_tokens)
            args, kwargs = executor.graphed.made_up_call(key)
            hidden = executor.forward(*args, **kwargs)
            executor.model.compute_logits(hidden[: executor.limits.max_num_reqs])

    def _retire_out_of_reach(self) -> None:
        """Give up the sizes of steps that cannot be, now that the cache has its size. Of each kind the smallest that
        holds the largest step stays, so that the peak has a graph."""
        graphed, page_size = self.executor.graphed, self.executor.limits.page_size
        num_pages = self.executor.num_pages - 1
        out = out_of_reach(graphed.keys, num_pages=num_pages, page_size=page_size)
        if out:
            why = f"no step can be so large: the KV cache has {num_pages} pages of {page_size} tokens"
            graphed.retire(out, why=why)
            self._forget(out)

    def _forget(self, retired: Sequence[GraphKey]) -> None:
        gone = set(retired)
        self.costs = {key: cost for key, cost in self.costs.items() if key not in gone}
