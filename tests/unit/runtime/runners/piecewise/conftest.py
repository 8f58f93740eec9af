"""Trace small callables with their breaks as ops, without a runner around."""

from types import SimpleNamespace

import pytest
import torch

from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.nest import map_tensors
from ostinato.runtime.runners.piecewise.runner import _LoweringObserver
from ostinato.runtime.runners.piecewise.trace import trace

ROWS = 4


def grown(value, rows):
    """``value`` with ``rows`` rows in its tensors that had `ROWS`."""
    return map_tensors(value, lambda t: torch.cat([t] * 3)[:rows] if t.dim() and t.shape[0] == ROWS else t)


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """Small matrices gain nothing from threads, and lose much where a machine is busy."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(previous)


@pytest.fixture
def traced():
    """``traced(fn, *args, **kwargs)``: the traced graph, and what runs it on other arguments.

    Warm-up is played with two sizes; first dimensions of `ROWS` become symbols unless ``is_dynamic=False``.
    """

    @torch.no_grad()
    def make(fn, *args, compiler=None, is_dynamic=True, **kwargs):
        found = {}
        lowerings = {}
        with handling_breaks(_LoweringObserver(lowerings)):
            for rows in (ROWS, ROWS + 1):
                fn(*grown(args, rows), **grown(kwargs, rows))

        def keep(module, example):
            found["module"] = module
            return module if compiler is None else compiler(module, example)

        given = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor)]
        symbols = [(i, 0) for i, t in enumerate(given) if is_dynamic and t.dim() and t.shape[0] == ROWS]

        def with_stand_ins(do):
            for point, lowering in lowerings.items():
                point.lowering.call = lowering.stand_in()
            try:
                return do()
            finally:
                for point in lowerings:
                    point.lowering.call = None

        program = with_stand_ins(lambda: trace(fn, args, kwargs, keep, symbols=symbols))

        @torch.no_grad()
        def run(*args, **kwargs):
            return with_stand_ins(lambda: program.bind(args, kwargs))()

        return SimpleNamespace(run=run, program=program, module=found["module"], lowerings=list(lowerings.values()))

    return make
