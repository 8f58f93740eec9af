"""Every class of the error tree, raised by the code that raises it for users: what failed, where, what to do.

One case a class. What else makes it is tested beside the code that does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostinato import errors
from ostinato.runtime import (
    CostTable,
    GraphConfig,
    Graphed,
    Workspace,
    diagnose,
    graph_break,
    jit_mark,
    read_costs,
    write_costs,
)
from ostinato.runtime.capture import select_backend
from ostinato.runtime.capture.cuda import _Watch
from ostinato.runtime.capture.generators import GeneratorLog

X = torch.ones(4, 2)


def ready(fn: Callable[..., Any], **config: Any) -> Graphed:
    graphed = Graphed(fn, example=(X,), config=GraphConfig(sizes=(4,), **config))
    graphed.warm_up().capture()
    return graphed


# --- one way to meet each ---------------------------------------------------------------------------


def no_positive_size(_: Path) -> None:
    GraphConfig(sizes=(4, 0))


def unknown_mode(_: Path) -> None:
    GraphConfig(mode="ful")


def costs_of_another_device(folder: Path) -> None:
    table = CostTable()
    write_costs(folder / "costs.json", {"breakable": table}, origin={"device": "a big one", "torch": "1"})
    read_costs(folder / "costs.json", origin={"device": "a small one", "torch": "1"})


def no_device(_: Path) -> None:
    from ostinato.engine.attention import get_attention_backend

    get_attention_backend("triton", "cpu")


def broken_target(_: Path) -> None:
    diagnose(lambda x: x @ x, (X,))


def swallowed_failure(_: Path) -> None:
    runs = []

    @graph_break
    def fails(h: torch.Tensor) -> None:
        runs.append(h)
        if len(runs) > 2:  # the first two are warm-up
            raise ValueError("planted")

    def fn(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            fails(x + 1)
        return x * 2

    ready(fn, mode="piecewise")


def capture_while_serving(_: Path) -> None:
    backend = select_backend("cpu")
    with backend.session():
        backend.begin()


def item_in_a_capture(_: Path) -> None:
    ready(lambda x: x * x.sum().item())


def nonzero_in_a_capture(_: Path) -> None:
    ready(lambda x: x[x.nonzero()[:, 0]].sum() + x)


def first_jit_in_a_capture(_: Path) -> None:
    specialisations = iter(range(100))
    ready(lambda x: jit_mark(f"kernel of {id(specialisations)} for {next(specialisations)}") or x + 1)


def capture_in_a_capture(_: Path) -> None:
    backend = select_backend("cpu")
    with backend.phase(), backend.session():
        backend.begin()
        backend.begin()


def attention_without_a_break(_: Path) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    ready(lambda x: attention(x[None], x[None], x[None])[0], mode="piecewise")


def data_dependence_in_a_trace(_: Path) -> None:
    ready(lambda x: x * int(x.sum()), mode="piecewise", partition="fx")


def break_that_takes_an_object(_: Path) -> None:
    @graph_break
    def look(h: torch.Tensor, what: object) -> torch.Tensor:
        return h * 2

    thing = object()
    ready(lambda x: look(x + 1, thing) + 1, mode="piecewise", partition="fx")


def inductor_on_a_cpu(_: Path) -> None:
    from ostinato.runtime.keys import Compiler, Partition
    from ostinato.runtime.runners import BreakableRunner
    from ostinato.runtime.runners.piecewise import CompiledRunner

    backend = select_backend("cpu")
    CompiledRunner(backend, BreakableRunner(backend), partition=Partition.FX, compiler=Compiler.INDUCTOR)


def stream_that_was_not_forked(_: Path) -> None:
    generators = GeneratorLog(torch.device("cuda", 0))
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch, _Watch(generators) as watch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        watch._device_type = "cpu"  # a stand-in for the device
        watch.is_active = True
        torch.add(X, 1)


def generator_made_in_the_callable(_: Path) -> None:
    ready(lambda x: x + torch.rand(x.shape, generator=torch.Generator()))


def moved_buffers(_: Path) -> None:
    graphed = ready(lambda x: x + 1)
    graphed.buffers.arena.data = graphed.buffers.arena.data.clone()
    graphed(X)


def another_dtype(_: Path) -> None:
    ready(lambda x: x + 1)(X.double())


def another_result_of_a_break(_: Path) -> None:
    now = torch.float32

    @graph_break
    def cast(h: torch.Tensor) -> torch.Tensor:
        return h.to(now, copy=True)

    graphed = ready(lambda x: cast(x + 1) * 1, mode="piecewise")
    now = torch.float64
    graphed(X)


def view_of_an_older_replay(_: Path) -> None:
    graphed = ready(lambda x: x + 1, outputs="view")
    view = graphed(X)
    graphed(X)
    view.sum()


def number_that_changes(_: Path) -> None:
    @graph_break
    def scale(h: torch.Tensor, by: int) -> torch.Tensor:
        return h * by

    numbers = iter(range(100))
    ready(lambda x: scale(x + 1, next(numbers)), mode="piecewise")


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def new_weight(_: Path) -> None:
    module = Scaled()
    graphed = ready(module)
    module.weight = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    graphed(X)


class Lookup:
    def __init__(self) -> None:
        self.inner = SimpleNamespace(table=torch.arange(2.0))  # an object in an object has no name

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner.table


def dropped_tensor(_: Path) -> None:
    lookup = Lookup()
    graphed = ready(lookup)
    lookup.inner.table = torch.zeros(2)
    gc.collect()
    graphed(X)


def rows_that_mix(_: Path) -> None:
    ready(lambda x: x - x.mean(0)).qualify().check()


def workspace_that_grows(_: Path) -> None:
    space = Workspace("scratch", device="cpu", num_bytes=32)
    ready(lambda x: x + space.reserve(32)[: 8 * len(x)].view(torch.float32).view(x.shape).zero_())
    space.reserve(1 << 20)


def capture_before_warm_up(_: Path) -> None:
    Graphed(lambda x: x, example=(X,)).capture()


def call_after_close(_: Path) -> None:
    graphed = ready(lambda x: x + 1)
    graphed.close()
    graphed(X)


def a_model_nobody_has(_: Path) -> None:
    from ostinato.engine.weights import resolve_model

    resolve_model("nobody/nothing")


def half_a_checkpoint(folder: Path) -> None:
    from ostinato import LLM
    from ostinato.testing.tiny_models import write_tiny_model

    model = write_tiny_model(folder) / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-8])
    LLM(str(folder), device="cpu")


def an_architecture_nobody_knows(folder: Path) -> None:
    from ostinato import LLM
    from ostinato.testing.tiny_models import write_tiny_model

    config = write_tiny_model(folder) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["MambaForCausalLM"]}))
    LLM(str(folder), device="cpu", load_format="dummy")


def a_request_to_a_sleeper(folder: Path) -> None:
    from ostinato import LLM
    from ostinato.testing.tiny_models import write_tiny_model

    model = str(write_tiny_model(folder))
    with LLM(model, device="cpu", mode="none", max_model_len=32, max_num_reqs=1, max_num_batched_tokens=4) as llm:
        llm.sleep()
        llm.add_request([5])


def a_cache_of_a_terabyte(folder: Path) -> None:
    from ostinato import LLM
    from ostinato.testing.tiny_models import write_tiny_model

    LLM(str(write_tiny_model(folder)), device="cpu", kv_tokens=10**12)


def a_file_for_a_cache(folder: Path) -> None:
    from ostinato.engine.weights.cache import ModelCache

    (folder / "cache").touch()
    with ModelCache(folder / "cache").staging():
        pass


def a_page_freed_twice(_: Path) -> None:
    from ostinato.engine.paging import PageAllocator

    allocator = PageAllocator(8, 4)
    (page,) = allocator.allocate(1) or []
    allocator.free([page])
    allocator.free([page])


def a_step_that_fails(_: Path) -> None:
    from ostinato.testing.scripted_loop import ScriptedLoop

    loop = ScriptedLoop(None)
    loop.add("a", [1, 2])
    loop.executor.failures = [ValueError("planted")]
    (update,) = loop.run()["a"]
    assert update.error is not None
    raise update.error


def a_lost_device(_: Path) -> None:
    from ostinato.testing.scripted_loop import ScriptedLoop

    loop = ScriptedLoop(None)
    loop.add("a", [1, 2])
    loop.executor.failures = [RuntimeError("CUDA error: an illegal memory access was encountered")]
    loop.run()
    loop.add("b", [1])


def a_library_that_is_not_installed(_: Path) -> None:
    from ostinato.engine.text.optional_import import require

    require("a_library_of_nobody", purpose="read minds")


def a_temperature_below_nothing(_: Path) -> None:
    from ostinato.engine.request import SamplingParams

    SamplingParams(temperature=-1.0)


# --- what each says -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Patterns for the message parts of one error; ``where`` names all of its context."""

    provoke: Callable[[Path], object]
    what: str
    where: dict[str, str] = field(default_factory=dict)
    fix: str


HERE = r".*test_error_messages\.py:\d+"
ADDRESS = "0x[0-9a-f]+"
CASES: dict[type[errors.OstinatoError], Parts] = {
    errors.ConfigError: Parts(
        provoke=no_positive_size, what="sizes must be positive", where={"got": r"\(4, 0\)"}, fix=r"remove \[0\]"
    ),
    errors.UnknownNameError: Parts(
        provoke=unknown_mode, what="unknown mode 'ful'", fix=r"did you mean 'full'\? valid: auto, full"
    ),
    errors.ForeignCostsError: Parts(
        provoke=costs_of_another_device,
        what="was measured with device a big one, and here it is a small one",
        where={"expected": "a small one", "got": "a big one"},
        fix="it is measured and written here",
    ),
    errors.DeviceUnavailableError: Parts(
        provoke=no_device, what="attention backend 'triton' does not run on cpu", fix="use attention='torch'"
    ),
    errors.TargetError: Parts(
        provoke=broken_target,
        what="fails on its example by itself: RuntimeError: mat1",
        where={"at": HERE},
        fix="make it run eagerly first",
    ),
    errors.CaptureError: Parts(
        provoke=swallowed_failure, what="an exception inside a break was swallowed", fix="let it surface"
    ),
    errors.CaptureNotAllowedError: Parts(
        provoke=capture_while_serving, what="outside the capture phase", fix=r"with capture\(\) before serving"
    ),
    errors.HostSyncError: Parts(
        provoke=item_in_a_capture,
        what="Tensor.item cannot be captured: host sync",
        where={"op": "Tensor.item", "at": HERE},
        fix="keep the value on the device, or move the call into a @graph_break function",
    ),
    errors.DynamicShapeError: Parts(
        provoke=nonzero_in_a_capture,
        what="aten::nonzero cannot be captured: data-dependent shape",
        where={"op": "aten::nonzero", "at": HERE},
        fix="use torch.where or a fixed-size mask",
    ),
    errors.JitInCaptureError: Parts(
        provoke=first_jit_in_a_capture,
        what="would compile for the first time inside a capture",
        where={"kernel": "kernel of", "at": HERE},
        fix="call it once during warm_up",
    ),
    errors.NestedCaptureError: Parts(
        provoke=capture_in_a_capture, what="a segment is open already", fix="end it before beginning another"
    ),
    errors.UnbrokenOpError: Parts(
        provoke=attention_without_a_break,
        what="scaled_dot_product_attention cannot be captured: mixes rows",
        where={"op": "torch.scaled_dot_product_attention", "at": HERE},
        fix="@graph_break function, or set unbroken_attention='allow'",
    ),
    errors.UntraceableError: Parts(
        provoke=data_dependence_in_a_trace,
        what=r"the value of item\(\) depends on the data",
        where={"op": "item", "at": HERE},
        fix="@graph_break or @opaque_op, or use partition='breakable'",
    ),
    errors.UntraceableBreakError: Parts(
        provoke=break_that_takes_an_object,
        what="break '.*look' cannot become a custom op: argument 'what' is a object",
        where={"source": HERE},
        fix="pass tensors, numbers and strings",
    ),
    errors.UnsupportedPartitionError: Parts(
        provoke=inductor_on_a_cpu, what="Inductor's CPU kernels bypass the dispatcher", fix="use partition='fx'"
    ),
    errors.UnjoinedStreamError: Parts(
        provoke=stream_that_was_not_forked,
        what="aten::add runs on a stream, which was not forked",
        where={"op": "aten::add", "stream": "a stream", "at": HERE},
        fix=r"call side\.wait_stream",
    ),
    errors.UnknownGeneratorError: Parts(
        provoke=generator_made_in_the_callable,
        what="aten::rand draws from a random generator that no warm-up run has drawn from",
        where={"op": "aten::rand", "at": HERE},
        fix="make the generator before warm_up, outside of the callable",
    ),
    errors.AddressChangedError: Parts(
        provoke=moved_buffers,
        what="the static buffers moved since capture",
        where={"expected": ADDRESS, "got": ADDRESS},
        fix="write into the buffers in place",
    ),
    errors.InputSpecError: Parts(
        provoke=another_dtype,
        what="argument 'x' differs from what was declared",
        where={"expected": r"\[num_tokens, 2\] float32 on cpu", "got": r"\[4, 2\] float64 on cpu"},
        fix="pass the declared shape, dtype and device",
    ),
    errors.BreakOutputError: Parts(
        provoke=another_result_of_a_break,
        what="break '.*cast' returned another result than at capture",
        where={"source": HERE, "expected": r"\[4, 2\] float32 on cpu", "got": r"\[4, 2\] float64 on cpu"},
        fix="return the captured shape, dtype",
    ),
    errors.StaleOutputError: Parts(
        provoke=view_of_an_older_replay,
        what="an output of an earlier replay is used after a later one",
        where={"key": "FULL tokens=4", "generation": r"\d", "now": r"\d"},
        fix=r"clone\(\) it before the next call",
    ),
    errors.FrozenValueError: Parts(
        provoke=number_that_changes,
        what="argument 'by' of break '.*scale' changes from run to run",
        where={"source": HERE, "at_warm_up": "2", "at_capture": "4"},
        fix="pass it as a tensor, or let the break look it up",
    ),
    errors.TensorReboundError: Parts(
        provoke=new_weight,
        what="weight is another tensor than at capture",
        where={"tensor": "weight", "key": "FULL tokens=4", "got": "Parameter", "segment": "0", "since": "between "},
        fix=r"copy_\(\), or call recapture\(\)",
    ),
    errors.TensorDroppedError: Parts(
        provoke=dropped_tensor,
        what=f"dropped or replaced since capture: used by aten::add at {HERE}",
        where={"key": "FULL tokens=4", "segment": "0", "since": "between "},
        fix="keep the tensor",
    ),
    errors.QualificationError: Parts(
        provoke=rows_that_mix,
        what="FULL tokens=4: PADDING_LEAKS: live output .* first at op 0 aten::mean",
        where={"failed": "1", "keys": "1"},
        fix="the key is quarantined",
    ),
    errors.WorkspaceGrowthError: Parts(
        provoke=workspace_that_grows,
        what="workspace 'scratch' would grow after a capture and move",
        where={"expected": "at most 32 bytes", "got": "1048576"},
        fix=r"reserve the largest size in warm_up\(\)",
    ),
    errors.RuntimeStateError: Parts(
        provoke=capture_before_warm_up,
        what=r"capture\(\) was called when the callable was planned",
        fix=r"the order is: warm_up\(\), capture\(\)",
    ),
    errors.ClosedError: Parts(provoke=call_after_close, what="this Graphed was closed", fix="keep the with block open"),
    errors.AsleepError: Parts(provoke=a_request_to_a_sleeper, what="its graphs were given back", fix=r"call wake\(\)"),
    errors.EngineError: Parts(
        provoke=a_library_that_is_not_installed,
        what="the library 'a_library_of_nobody' is needed to read minds",
        fix="pip install",
    ),
    errors.ModelNotFoundError: Parts(
        provoke=a_model_nobody_has,
        what="no source has the model 'nobody/nothing'. Tried local path: .*package index",
        fix="check the spelling, or give the path",
    ),
    errors.CheckpointError: Parts(
        provoke=half_a_checkpoint,
        what=r"model\.safetensors is truncated or corrupt",
        fix="download or copy this file again",
    ),
    errors.UnsupportedArchitectureError: Parts(
        provoke=an_architecture_nobody_knows,
        what="no model family for 'MambaForCausalLM'",
        fix="one of these architectures: LlamaForCausalLM",
    ),
    errors.OutOfMemoryError: Parts(
        provoke=a_cache_of_a_terabyte,
        what=r"a KV cache of 1000000000000 tokens needs [\d.]+ GiB, and \d+ tokens fit",
        fix=r"lower kv_tokens: each 1,000 tokens take [\d.]+ MiB",
    ),
    errors.UnwritableCacheError: Parts(
        provoke=a_file_for_a_cache, what="cannot write the cache .*Not a directory", fix="OSTINATO_CACHE"
    ),
    errors.PageIntegrityError: Parts(
        provoke=a_page_freed_twice, what="page 1 is freed twice", where={"page": "1"}, fix="restart the engine"
    ),
    errors.StepFailedError: Parts(
        provoke=a_step_that_fails,
        what="the step failed: ValueError: planted",
        where={"num_reqs": "1"},
        fix="the request may be sent again",
    ),
    errors.EngineDeadError: Parts(
        provoke=a_lost_device,
        what="the engine is dead: RuntimeError: CUDA error: an illegal memory access",
        fix="start a new process",
    ),
    errors.RequestError: Parts(
        provoke=a_temperature_below_nothing,
        what="temperature must be a finite number >= 0, got -1.0",
        where={"field": "temperature", "expected": "a finite number >= 0", "got": "-1.0"},
        fix="set temperature",
    ),
}
FAMILIES = {errors.OstinatoError, errors.GuardError}
"""Raised by nobody: they are there to be caught."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "models"))
    return tmp_path


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_what_it_says(kind: type[errors.OstinatoError], folder: Path) -> None:
    parts = CASES[kind]
    with pytest.raises(kind) as caught:
        parts.provoke(folder)
    error = caught.value
    assert type(error) is kind
    assert re.search(parts.what, error.message, re.DOTALL)
    assert set(error.context) == set(parts.where)
    assert all(re.match(pattern, str(error.context[name])) for name, pattern in parts.where.items()), error.context
    assert parts.fix and re.search(parts.fix, error.fix)
    text = str(error)
    assert text.startswith(f"[{kind.code}] {error.message}") and text.endswith(f"Fix: {error.fix}")
    assert all(f"{name}={value}" in text for name, value in error.context.items())
    document = json.loads(json.dumps(error.to_dict()))
    assert (document["code"], document["type"]) == (kind.code, kind.__name__)
    assert (document["message"], document["fix"]) == (error.message, error.fix)


def test_no_class_is_left_out() -> None:
    assert {getattr(errors, name) for name in errors.__all__} == {*CASES, *FAMILIES}


def test_families_are_raised_by_nobody() -> None:
    sources = (Path(errors.__file__).parent).rglob("*.py")
    raised = re.compile(r"\b(OstinatoError|GuardError)\((?!Exception|OstinatoError)")
    assert not [path for path in sources if raised.search(path.read_text(encoding="utf-8"))]
