"""An engine is made while its weights are copied, and runs nothing that counts before they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato import LLM
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import EngineGraphs, Executor, engine_graphs, load_model
from ostinato.engine.execution import executor as executor_module
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.layers.linear_table import LinearTable
from ostinato.engine.request import SamplingParams
from ostinato.engine.text import Tokenizer
from ostinato.engine.weights import parallel_copy
from ostinato.errors import ConfigError, OutOfMemoryError

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 256,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
STARTS: list[dict[str, Any]] = [
    {"capture": "background"},
    {"capture": "eager"},
    {"mode": "none"},
    {"mode": "none", "capture": "background"},
]
PROMPTS = [[5], [7, 8, 9, 250], [3] * 20]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from ostinato.testing.tiny_models import write_tiny_model

    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def expected(folder: str) -> list[list[int]]:
    with LLM(folder, mode="none", **SETTINGS) as llm:
        return answers(llm)


class Gate:
    """Copies stand in front of it until it is opened; `log` has that and what else the test notes, in order."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.copy = parallel_copy._copy_on_host
        self.num_copied = 0
        self.log: list[str] = []

    def __call__(self, target: Tensor, source: Tensor) -> None:
        assert self.opened.wait(20), "nobody opened the gate: somebody waits for the weights too early"
        self.copy(target, source)
        self.num_copied += 1

    def open(self) -> None:
        self.log.append("opened")
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(parallel_copy, "_copy_on_host", gate)
    yield gate
    gate.opened.set()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


def noted(monkeypatch: pytest.MonkeyPatch, gate: Gate, owner: Any, name: str, *, opens: bool = False) -> None:
    """Write each call of ``owner.name`` into the log when it begins; ``opens``: open the gate first."""
    real = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if opens and not gate.opened.is_set():
            gate.open()
        gate.log.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_it_is_made_meanwhile_and_waits_before_anything_counts(
    folder: str, expected: list[list[int]], gate: Gate, monkeypatch: pytest.MonkeyPatch, start: dict[str, Any]
) -> None:
    """Not one weight is there when the executor is; if anybody had waited before, nobody would open the gate."""
    noted(monkeypatch, gate, LoadedModel, "await_weights", opens=True)
    for owner, name in (
        (Captures, "start_later"), (Captures, "start"), (Captures, "capture_late"), (Executor, "launch"),
        (Executor, "forward"),
    ):  # fmt: skip
        noted(monkeypatch, gate, owner, name)
    real_close = parallel_copy.TensorCopies.close
    monkeypatch.setattr(
        parallel_copy.TensorCopies, "close", lambda copies: (real_close(copies), gate.log.append("all there"))[0]
    )
    with LLM(folder, **{**SETTINGS, **start}) as llm:
        assert answers(llm) == expected
    before = gate.log[: gate.log.index("all there")]
    later = ["start_later"] if start.get("capture") == "background" else []
    assert before == [*later, "opened", "await_weights"]
    assert threads() == []


def test_the_bar_of_the_weights_ends_before_the_next_begins(folder: str) -> None:
    told: list[tuple[Any, ...]] = []

    class Recorder:
        def start(self, label: str, total: int | None, unit: str) -> None:
            told.append(("start", label, threading.current_thread()))

        def advance(self, n: int) -> None:
            told.append(("advance", n, threading.current_thread()))

        def finish(self) -> None:
            told.append(("finish", "", threading.current_thread()))

    with LLM(folder, progress=Recorder(), **SETTINGS) as llm:
        total = sum(tensor.nbytes for tensor in llm._require_open().model.parameters())
    assert {thread for *_, thread in told} == {threading.current_thread()}
    end = [what for what, *_ in told].index("finish")
    assert told[0][:2] == ("start", "loading weights")
    assert {what for what, *_ in told[1:end]} == {"advance"}
    assert sum(n for _, n, _ in told[1:end]) == total
    assert told[end + 1][:2] == ("start", "warm-up and capture")


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_memory_that_a_copy_lacks(folder: str, monkeypatch: pytest.MonkeyPatch, start: dict[str, Any]) -> None:
    closed: list[Executor] = []
    close = Executor.close
    monkeypatch.setattr(Executor, "close", lambda executor: (closed.append(executor), close(executor))[1])

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fails)
    with pytest.raises(OutOfMemoryError, match="the weights do not fit") as caught:
        LLM(folder, **{**SETTINGS, **start})
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert len(closed) == 1 and threads() == []


def test_another_failure_comes_as_it_is(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fails)
    with pytest.raises(OSError, match="Input/output error"):
        LLM(folder, **SETTINGS)
    assert threads() == []


def test_an_engine_that_cannot_be_made_gives_its_weights_up(
    folder: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is no error of the executor either: the file of costs is looked at before it."""
    monkeypatch.setattr(parallel_copy, "_num_cores", lambda: 1)
    threading.Timer(0.2, gate.open).start()
    with pytest.raises(ConfigError):
        LLM(folder, dispatch="measured", costs="/no/such/folder/costs.json", capture="background", **SETTINGS)
    assert threads() == [] and gate.num_copied <= 1
    gate.opened.clear()
    threading.Timer(0.2, gate.open).start()

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(executor_module, "allocate_counts", fails)
    with pytest.raises(OutOfMemoryError, match="token counts"):
        LLM(folder, **SETTINGS)
    assert threads() == [] and gate.num_copied <= 2


def test_linear_kernels_are_measured_with_all_weights_there(
    folder: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted(monkeypatch, gate, LoadedModel, "await_weights", opens=True)

    def measures(*_: Any, **__: Any) -> LinearTable:
        gate.log.append("measures")
        assert threads() == []
        return LinearTable(choices={})

    monkeypatch.setattr(executor_module, "tune_linears", measures)
    loaded = load_model(EngineConfig(model=folder, **SETTINGS), waits=False)
    object.__setattr__(loaded.config, "tune_linears", True)  # as it is on CUDA
    Executor(loaded).close()
    assert gate.log == ["opened", "await_weights", "measures"]


@pytest.mark.parametrize(
    ("settings", "has_copies", "kind", "order"),
    [
        ({"capture": "background", "mode": "auto"}, True, "cuda", ["rehearse", "wait"]),
        ({"capture": "eager", "mode": "none"}, True, "cuda", ["rehearse", "wait"]),
        ({"capture": "eager", "mode": "auto"}, True, "cuda", ["wait"]),
        ({"capture": "background", "mode": "auto"}, True, "cpu", ["wait"]),
        ({"capture": "background", "mode": "auto"}, False, "cuda", ["wait"]),
    ],
)
def test_who_rehearses_while_it_waits(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], has_copies: bool, kind: str, order: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(engine_graphs, "rehearse", lambda executor: found.append("rehearse"))
    graphs: Any = SimpleNamespace(_config=SimpleNamespace(**settings), executor=None)
    loaded: Any = SimpleNamespace(
        copies=object() if has_copies else None,
        device=torch.device(kind),
        await_weights=lambda: found.append("wait"),
    )
    EngineGraphs._await_weights(graphs, loaded)
    assert found == order


def test_load_model_itself_waits(tiny_dir: Callable[[str], Path]) -> None:
    loaded = load_model(EngineConfig(model=str(tiny_dir("llama")), **SETTINGS))
    assert loaded.copies is None and threads() == []
    loaded.await_weights()
    loaded.give_up_weights()


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_while_the_text_is_prepared_ends_the_copies(
    folder: str, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    def interrupted(_: Tokenizer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tokenizer, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_model(EngineConfig(model=folder, **SETTINGS), waits=waits)
    assert threads() == []
