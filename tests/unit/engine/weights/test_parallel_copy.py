"""Tensors of mapped files to their places, by several threads: the same bits, side by side, no thread left over."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import load_model
from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.weights import TensorCopies, copy_tensors, iter_safetensors, parallel_copy
from ostinato.errors import RuntimeStateError
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config, write_tiny_model


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 KiB, and 4 threads."""
    monkeypatch.setattr(parallel_copy, "_CHUNK_BYTES", 4096)
    monkeypatch.setattr(parallel_copy, "_num_cores", lambda: 4)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


def shards(folder: Path, num: int) -> list[Tensor]:
    """Mapped, one a file, of 2,048 float32 (two chunks)."""
    for index in range(num):
        save_file({"x": torch.randn(64, 32)}, folder / f"{index}.safetensors")
    mapped = []
    for index in range(num):
        (folder / str(index)).mkdir()
        (folder / f"{index}.safetensors").rename(folder / str(index) / "model.safetensors")
        mapped += [tensor for _, tensor in iter_safetensors(folder / str(index))]
    return mapped


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_parameters_as_one_after_the_other(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    """Tied heads among them (qwen2)."""
    folder, config = write_tiny_model(tmp_path, family), ModelConfig.from_hf(tiny_config(family))
    expected, found = (build_model(config, device="cpu", dtype=dtype) for _ in range(2))
    expected.load_weights(iter_safetensors(folder))
    pairs: list[tuple[Tensor, Tensor]] = []
    found.load_weights(iter_safetensors(folder), put=lambda target, tensor: pairs.append((target, tensor)))
    addresses = [parameter.data_ptr() for parameter in found.parameters()]
    copy_tensors(pairs)
    assert [parameter.data_ptr() for parameter in found.parameters()] == addresses
    assert (found.head is found.embedding) == config.has_tied_head
    for name, parameter in expected.named_parameters():
        assert torch.equal(parameter, found.get_parameter(name)), name
    assert threads() == []


@pytest.mark.parametrize("num_files", [4, 1])
def test_files_and_ranges_of_one_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    """The first chunks of four ranges meet at a barrier: one thread alone would wait there for ever."""
    if num_files == 1:
        save_file({"x": torch.randn(256, 32)}, tmp_path / "model.safetensors")
        sources = [tensor for _, tensor in iter_safetensors(tmp_path)]
    else:
        sources = shards(tmp_path, num_files)
    targets = [torch.zeros_like(source) for source in sources]
    barrier, copy = threading.Barrier(4, timeout=20), parallel_copy._copy_on_host
    places: list[int] = []

    def meet(target: Tensor, source: Tensor) -> None:
        places.append(source.data_ptr())
        if len(places) <= 4:
            barrier.wait()
        copy(target, source)

    monkeypatch.setattr(parallel_copy, "_copy_on_host", meet)
    copy_tensors(list(zip(targets, sources, strict=True)))
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))
    starts = [source.data_ptr() for source in sources] if num_files == 4 else None
    first = sorted(places[:4])
    assert first == sorted(starts or [sources[0].data_ptr() + quarter * 8192 for quarter in range(4)])
    assert len(places) == 8


def test_one_that_fails_ends_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Any) -> None:
    sources = shards(tmp_path, 6)
    targets = [torch.zeros_like(source) for source in sources]
    bad, copy, copied = sources[1].data_ptr(), parallel_copy._copy_on_host, []

    def fail(target: Tensor, source: Tensor) -> None:
        if source.data_ptr() == bad:
            raise OSError("Input/output error")
        copied.append(source)
        copy(target, source)

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fail)
    with pytest.raises(OSError, match="Input/output error"):
        copy_tensors(list(zip(targets, sources, strict=True)), progress=progress)
    assert threads() == [] and progress.works[0][3] is True
    assert progress.works[0][2] < progress.works[0][1] and not targets[1].flatten()[:1024].any()


def test_an_interrupt_ends_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the thread that waits, between two chunks; most of the others are not begun any more."""
    sources, copied = [torch.randn(1024) for _ in range(500)], []

    def slowly(target: Tensor, source: Tensor) -> None:
        copied.append(target)
        time.sleep(0.01)

    monkeypatch.setattr(parallel_copy, "_copy_on_host", slowly)

    class Interrupted:
        """A reporter whose watcher has pressed Ctrl-C."""

        def start(self, label: str, total: int | None, unit: str) -> None: ...

        def advance(self, n: int) -> None:
            raise KeyboardInterrupt

        def finish(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        copy_tensors([(torch.zeros(1024), source) for source in sources], progress=Interrupted())
    assert threads() == [] and len(copied) < 50


def test_progress_counts_the_bytes_of_the_files(tmp_path: Path, progress: Any) -> None:
    sources = [torch.randn(3000), torch.randn(5, 7).bfloat16(), torch.randn(2, 2)]
    copy_tensors([(torch.zeros(source.shape, dtype=torch.float16), source) for source in sources], progress=progress)
    total = 3000 * 4 + 35 * 2 + 4 * 4
    assert progress.works == [["loading weights", total, total, True]]


def test_what_is_no_flat_piece_of_memory(tmp_path: Path) -> None:
    table, source = torch.zeros(4, 6), torch.randn(4, 3)
    copy_tensors([(table[:, 2:5], source), (table[:, :2], torch.ones(2, 4).t())])
    assert torch.equal(table[:, 2:5], source) and table[:, :2].eq(1).all() and not table[:, 5].any()


def test_nothing_to_copy(progress: Any) -> None:
    copy_tensors([], progress=progress)
    assert progress.works == []


def test_an_engine_is_filled_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    copy = parallel_copy._copy_on_host
    monkeypatch.setattr(parallel_copy, "_copy_on_host", lambda t, s: (seen.append(s.nbytes), copy(t, s))[1])
    loaded = load_model(EngineConfig(model=str(write_tiny_model(tmp_path)), device="cpu"))
    assert sum(seen) == sum(parameter.nbytes for parameter in loaded.model.parameters())


# --- copies on their way --------------------------------------------------------------------------


class Gate:
    """Copies stand in front of it until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun: list[Tensor] = []
        self.copied: list[Tensor] = []
        self.copy = parallel_copy._copy_on_host

    def __call__(self, target: Tensor, source: Tensor) -> None:
        self.begun.append(target)
        assert self.opened.wait(20)
        self.copy(target, source)
        self.copied.append(target)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(parallel_copy, "_copy_on_host", gate)
    yield gate
    gate.opened.set()


def some_pairs(num: int = 12) -> list[tuple[Tensor, Tensor]]:
    return [(torch.zeros(1024), torch.randn(1024)) for _ in range(num)]


def test_other_work_is_done_before_all_is_there(gate: Gate, progress: Any) -> None:
    """The bar begins when the copies do, and is told the rest by whoever waits, on that thread."""
    pairs, usual = some_pairs(), sys.getswitchinterval()
    copies = TensorCopies(pairs, progress=progress)
    assert progress.works == [["loading weights", 12 * 4096, 0, False]]
    assert not any(target.any() for target, _ in pairs) and len(threads()) == 4
    assert sys.getswitchinterval() < usual
    gate.opened.set()
    copies.wait()
    copies.wait()
    assert all(torch.equal(target, source) for target, source in pairs)
    assert progress.works == [["loading weights", 12 * 4096, 12 * 4096, True]]
    assert threads() == [] and sys.getswitchinterval() == pytest.approx(usual)


def test_closed_without_a_wait(gate: Gate, progress: Any) -> None:
    """What is under way ends before `close` returns, so that nobody writes what may be freed then; the rest stays."""
    pairs, usual = some_pairs(), sys.getswitchinterval()
    copies = TensorCopies(pairs, progress=progress)
    threading.Timer(0.2, gate.opened.set).start()
    copies.close()
    num_copied = len(gate.copied)
    assert threads() == [] and num_copied == len(gate.begun) <= 4
    assert progress.works == [["loading weights", 12 * 4096, 0, True]]
    assert sys.getswitchinterval() == pytest.approx(usual)
    copies.close()
    with pytest.raises(RuntimeStateError, match="weights are missing"):
        copies.wait()
    assert sum(bool(target.any()) for target, _ in pairs) == num_copied


def test_targets_live_until_nobody_writes_them(gate: Gate) -> None:
    """Also where nobody waits or closes."""
    pairs = some_pairs(4)
    targets = [weakref.ref(target) for target, _ in pairs]
    copies = TensorCopies(pairs)
    while len(gate.begun) < 4:
        time.sleep(0.01)
    gate.begun.clear()
    del pairs, copies
    left = [thread for thread in threading.enumerate() if thread.name.startswith("weights")]
    gate.opened.set()
    for thread in left:
        thread.join(20)
    assert len(left) == 4 and len(gate.copied) == 4 and all(target.any() for target in gate.copied)
    gate.copied.clear()
    left.clear()
    assert [target() for target in targets] == [None] * 4


def test_what_failed_is_raised_by_the_wait_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch, progress: Any) -> None:
    def fails(target: Tensor, source: Tensor) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr(parallel_copy, "_copy_on_host", fails)
    pairs = some_pairs()
    targets = [weakref.ref(target) for target, _ in pairs]
    copies = TensorCopies(pairs, progress=progress)
    with pytest.raises(OSError, match="Input/output error"):
        copies.wait()
    assert threads() == [] and progress.works[0][3] is True
    del pairs
    assert [target() for target in targets] == [None] * 12, "without a run of the garbage collector"
    with pytest.raises(RuntimeStateError):
        copies.wait()


def test_a_thread_that_cannot_be_made_leaves_none(monkeypatch: pytest.MonkeyPatch, progress: Any) -> None:
    start, made = threading.Thread.start, []

    def starts(thread: threading.Thread) -> None:
        if len(made) == 2:
            raise RuntimeError("can't start new thread")
        made.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with pytest.raises(RuntimeError, match="can't start"):
        TensorCopies(some_pairs(), progress=progress)
    assert len(made) == 2 and threads() == [] and progress.works[0][3] is True
