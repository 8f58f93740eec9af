"""Full graphs of a traced model, as `compile="inductor"` makes them on a GPU: decodes and mixed batches side by side.

A CPU resolves that to no compiler, so the runner is put in here, with a trace that nothing compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ostinato.engine.request import Request
from ostinato.runtime import RuntimeMode, assembly
from ostinato.runtime.dispatch import ResolvedMode
from ostinato.runtime.keys import Partition
from ostinato.runtime.runners import FullRunner, make_runners
from ostinato.runtime.runners.piecewise import CompiledRunner

if TYPE_CHECKING:
    from .conftest import ExecutorMaker

SIZES: dict[str, Any] = {
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "decode_sizes": (1, 4),
    "token_sizes": (4, 16),
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(backend: Any, **settings: Any) -> Any:
        before = settings["before_trace"]
        full = CompiledRunner(backend, FullRunner(backend), partition=Partition.FX, before_trace=before)
        return {**make_runners(backend, **settings), RuntimeMode.FULL: full}

    monkeypatch.setattr(assembly, "make_runners", make)
    monkeypatch.setattr(ResolvedMode, "is_traced", property(lambda _: True))


def serve(executor: Any, helpers: Any) -> list[torch.Tensor]:
    """The logits of steps: prompts whole and in chunks, decodes of one to three, some beside a prompt."""
    serving = helpers.Serving(executor, max_num_batched_tokens=16, max_num_reqs=4)
    given = []
    for number, length in enumerate((5, 21, 3)):
        prompt = list(range(7, 7 + length))
        serving.scheduler.add(Request(request_id=str(number), prompt_token_ids=prompt))
        given += [serving.step()[1].clone() for _ in range(3)]
    return given


@pytest.mark.parametrize(
    ("mode", "mixed"), [("full", {}), ("full_decode_only", {}), ("full_and_piecewise", {"full_mixed_max_tokens": 16})]
)
@pytest.mark.usefixtures("traced")
def test_a_trace_for_decodes_and_one_for_mixed_batches(
    make_executor: ExecutorMaker, helpers: Any, mode: str, mixed: dict[str, int]
) -> None:
    expected = serve(make_executor(mode="none", always=True, **SIZES), helpers)
    executor = make_executor(mode=mode, always=True, **SIZES, **mixed)
    assert set(executor.graphed.plans) == set(executor.graphed.keys)
    runner: Any = executor.graphed._runs.runners[RuntimeMode.FULL]
    kinds = {kind for kind, _ in runner._programs}
    decode, both = ("full decode", 1), {("full decode", 1), ("full", None)}
    assert kinds == ({decode} if mode == "full_decode_only" else both)
    for ours, theirs in zip(serve(executor, helpers), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    taken = executor.graphed.counters.by_runtime_mode
    assert set(taken) == ({"FULL", "EAGER"} if mode == "full_decode_only" else {"FULL"}), taken
