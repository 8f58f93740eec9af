"""What a partition needs is asked for when it is chosen: each thing that may be missing, and what is said of it."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ostinato.errors import UnsupportedPartitionError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.keys import Compiler, Partition
from ostinato.runtime.runners.piecewise import support
from ostinato.runtime.runners.piecewise.support import require_support

FX, INDUCTOR = Partition.FX, Partition.INDUCTOR


@graph_break
def mix(h):
    return torch.cumsum(h, -1)


@pytest.fixture
def without(monkeypatch):
    """``without("torch._dynamo")``: it cannot be imported. Triton can, on this machine or not."""

    def forbid(*names, error=ImportError):
        def load(name):
            if name in names:
                raise error(f"no {name} here")
            return None if name == "triton" else importlib.import_module(name)

        monkeypatch.setattr(support, "importlib", SimpleNamespace(import_module=load))

    return forbid


@pytest.mark.parametrize(
    ("partition", "compiler", "backend"),
    [(FX, Compiler.NONE, "simulated"), (FX, Compiler.NONE, "cuda"), (INDUCTOR, Compiler.NONE, "cuda")],
)
def test_what_is_there_is_enough(without, partition, compiler, backend):
    without("nothing")
    require_support(partition, compiler, backend=backend)


def test_a_trace_alone_needs_neither_inductor_nor_triton(without):
    without("torch._inductor.compile_fx", "triton")
    require_support(FX, Compiler.NONE, backend="cuda")


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
@pytest.mark.parametrize(
    ("missing", "partition", "compiler", "fix"),
    [
        ("torch._dynamo", FX, Compiler.NONE, "use partition='breakable' with compile='none', which need no compiler"),
        ("torch._dynamo", INDUCTOR, Compiler.NONE, "partition='breakable'"),
        ("torch._inductor.compile_fx", INDUCTOR, Compiler.NONE, "use compile='none' with partition='fx'"),
        ("torch._inductor.compile_fx", FX, Compiler.INDUCTOR, "use compile='none' with partition='fx'"),
        ("triton", INDUCTOR, Compiler.NONE, "pip install triton"),
        ("triton", FX, Compiler.INDUCTOR, "pip install triton"),
    ],
)
def test_what_cannot_be_imported_is_named(without, missing, partition, compiler, fix, error):
    without(missing, error=error)
    with pytest.raises(UnsupportedPartitionError, match=f"{missing} cannot be imported: no {missing} here") as caught:
        require_support(partition, compiler, backend="cuda")
    assert f"partition {partition.value!r}" in caught.value.message
    assert ("compile='inductor'" in caught.value.message) == (compiler is Compiler.INDUCTOR)
    assert fix in caught.value.fix
    assert isinstance(caught.value.__cause__, error)


def test_a_python_that_dynamo_cannot_run_on(monkeypatch):
    def refuse():
        raise RuntimeError("Python 3.99+ not yet supported")

    monkeypatch.setattr(torch._dynamo.eval_frame, "check_if_dynamo_supported", refuse)
    with pytest.raises(UnsupportedPartitionError, match=r"Python 3\.99") as caught:
        require_support(FX, Compiler.NONE, backend="simulated")
    assert "partition='breakable'" in caught.value.fix


def test_dynamo_switched_off():
    with (
        torch._dynamo.config.patch(disable=True),
        pytest.raises(UnsupportedPartitionError, match="Dynamo is switched off") as caught,
    ):
        require_support(FX, Compiler.NONE, backend="simulated")
    assert "TORCH_COMPILE_DISABLE" in caught.value.fix


# --- through the facade -----------------------------------------------------------------------------


def opened(**settings):
    return Graphed(lambda x: mix(x) + 1, example=(torch.ones(4, 2),), config=GraphConfig(sizes=(4,), **settings))


def test_it_is_told_before_anything_is_run(without):
    without("torch._dynamo")
    ran = []
    with pytest.raises(UnsupportedPartitionError):
        config = GraphConfig(mode="piecewise", partition="fx", sizes=(4,))
        Graphed(ran.append, example=(torch.ones(4, 2),), config=config)
    assert not ran


@pytest.mark.parametrize(
    "settings",
    [{"mode": "piecewise"}, {"mode": "full", "partition": "fx"}, {"mode": "none", "partition": "fx"}],
    ids=lambda settings: "-".join(settings.values()),
)
def test_what_traces_nothing_needs_no_compiler(without, settings):
    without("torch._dynamo")
    with opened(**settings) as graphed, torch.no_grad():
        graphed.warm_up()
        if settings["mode"] != "none":
            assert not graphed.capture().failed
            assert torch.equal(graphed(torch.ones(4, 2)), mix(torch.ones(4, 2)) + 1)


def test_it_loads_none_either():
    """One after the other in a fresh process, which takes seconds to import torch: what one loads is seen at once."""
    statement = (
        "import sys, torch\n"
        "from ostinato import Graphed, GraphConfig\n"
        "for partition, mode in (('breakable', 'piecewise'), ('fx', 'full'), ('fx', 'none')):\n"
        "    config = GraphConfig(mode=mode, partition=partition, sizes=(4,))\n"
        "    Graphed(lambda x: x + 1, example=(torch.ones(4, 2),), config=config)\n"
        "    assert 'torch._dynamo' not in sys.modules, (partition, mode)"
    )
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
