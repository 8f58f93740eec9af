"""Which runner each runtime mode gets, for every partition and compiler."""

import itertools

import pytest

from ostinato.runtime.buffers import BridgePool
from ostinato.runtime.keys import Compiler, Partition, RuntimeMode
from ostinato.runtime.runners import BreakableRunner, FullRunner, make_runners
from ostinato.runtime.runners.piecewise import CompiledRunner


class OtherDevice:
    """A backend that may record what Inductor makes; runners only keep it here."""

    name = "other"

    @staticmethod
    def borrow(tensor):
        return tensor


def make(partition, compiler, **changes):
    settings = {
        "compile_max_tokens": None,
        "allow_unbroken_attention": False,
        "owns_arguments": False,
        "bridges": BridgePool(),
    }
    return make_runners(OtherDevice(), partition=partition, compiler=compiler, **{**settings, **changes})


@pytest.mark.parametrize(("partition", "compiler"), list(itertools.product(Partition, Compiler)))
def test_runners(partition, compiler):
    runners = make(partition, compiler)
    assert set(runners) == {RuntimeMode.FULL, RuntimeMode.PIECEWISE}
    assert all(runner.runtime_mode is mode for mode, runner in runners.items())
    full, piecewise = runners[RuntimeMode.FULL], runners[RuntimeMode.PIECEWISE]
    if partition is Partition.BREAKABLE:
        assert type(piecewise) is BreakableRunner, "needs no compiler, whatever full graphs are given"
    else:
        assert type(piecewise) is CompiledRunner
        assert type(piecewise._inner) is BreakableRunner
        assert (piecewise._partition, piecewise._compiler) == (partition, compiler)
        assert piecewise._max_tokens is None
    if compiler is Compiler.NONE:
        assert type(full) is FullRunner
    else:
        assert type(full) is CompiledRunner
        assert type(full._inner) is FullRunner
        assert full._partition is Partition.INDUCTOR, "nothing to split: the whole graph is compiled"


@pytest.mark.parametrize("mode", list(RuntimeMode))
def test_a_runtime_mode_that_records_nothing_is_given_no_compiler(mode):
    runners = make(Partition.INDUCTOR, Compiler.INDUCTOR, runtime_modes=(mode,))
    assert {m for m, runner in runners.items() if type(runner) is CompiledRunner} == {mode} & set(runners)


def test_the_limit_is_for_full_graphs():
    runners = make(Partition.FX, Compiler.INDUCTOR, compile_max_tokens=64)
    assert runners[RuntimeMode.FULL]._max_tokens == 64
    assert runners[RuntimeMode.PIECEWISE]._max_tokens is None


@pytest.mark.parametrize("partition", list(Partition))
def test_settings_reach_the_runner_that_records(partition):
    bridges = BridgePool()
    runners = make(
        partition,
        Compiler.NONE,
        bridges=bridges,
        owns_arguments=True,
        allow_unbroken_attention=True,
        before_trace=print,
    )
    recording = runners[RuntimeMode.PIECEWISE]
    if partition is not Partition.BREAKABLE:
        assert recording._before_trace is print
        recording = recording._inner
    assert recording.bridges is bridges
    assert recording._owns_arguments
    assert recording._forbid == frozenset()
