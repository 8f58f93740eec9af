"""Capture one callable with one runner, as the facade would, but by hand."""

import pytest
import torch

from ostinato.runtime.keys import GraphKey


@pytest.fixture
def make_plan(backend):
    """``make_plan(runner, fn, *tensors, warm=(...))``: the plan of ``fn(*tensors)``, keyed by their rows."""
    plans = []

    def make(runner, fn, *args, is_warm=True):
        def key(rows):
            return GraphKey(runtime_mode=runner.runtime_mode, num_tokens=rows)

        rows = args[0].shape[0]
        if is_warm:
            for size in (rows, rows + 1):  # two sizes tell a batch axis from a state's
                grown = [torch.cat([a, a[:1]])[:size] if a.shape[0] == rows else a for a in args]
                runner.warm_up(key(size), lambda grown=grown: fn(*grown))
        with backend.phase():
            plan = runner.capture(key(rows), lambda: fn(*args))
        plans.append(plan)
        return plan

    yield make
    for plan in plans:
        plan.close()
