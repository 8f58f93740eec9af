"""Executables that graphs share, on a GPU: answers, memory, random numbers, streams, threads and an engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ostinato import LLM, GraphConfig, Graphed, SamplingParams
from ostinato.runtime.capture import CaptureBackend, CapturedGraph, select_backend
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 1 << 20


def capture(backend: CaptureBackend, fn: Any, *args: torch.Tensor) -> tuple[CapturedGraph, Any]:
    """A graph of ``fn(*args)``, after a warm-up."""
    with backend.session():
        fn(*args)
    with backend.phase(), backend.session():
        backend.begin()
        out = fn(*args)
        return backend.end(), out


def launches(t: torch.Tensor) -> torch.Tensor:
    """A thousand kernels."""
    for _ in range(1000):
        t = t + 1
    return t


def test_ten_graphs_take_the_memory_of_one_executable() -> None:
    taken = {}
    with torch.no_grad():
        warm = select_backend("cuda")
        graph, _ = capture(warm, launches, torch.zeros(8, device="cuda"))
        graph.replay()  # what the driver takes once a process
        for shares in (True, False):  # own last: what the driver keeps of the first cannot make it look smaller
            backend = select_backend("cuda", shares_executables=shares)
            kept = [capture(backend, launches, torch.zeros(8, device="cuda"))]
            kept[0][0].replay()
            before = backend.usage().driver_bytes
            kept += [capture(backend, launches, torch.zeros(8, device="cuda")) for _ in range(40)]
            for each, _ in kept:
                each.replay()
            torch.cuda.synchronize()
            taken[shares] = backend.usage().driver_bytes - before
            assert backend.executables().num_executables == (1 if shares else 41)
            assert all(out.tolist() == [1000.0] * 8 for _, out in kept)
            for each, _ in kept:
                each.close()
            backend.close()
        graph.close()
        warm.close()
    assert taken[True] < 2 * MIB + taken[False] // 4 and taken[False] > 2 * MIB, taken


def test_kernels_and_grids_may_differ_between_graphs_of_one_executable() -> None:
    """Small and large products take other kernels; only the number and order of nodes must agree."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64, device="cuda", dtype=torch.float64)
    x = torch.randn(4096, 64, device="cuda", dtype=torch.float64)
    config = GraphConfig(mode="full", sizes=(1, 8, 64, 512, 4096), executables="shared")
    with Graphed(lambda x: (x @ weight).relu() * 2, example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        counts = graphed.backend.executables()
        assert counts.num_executables < 5 and counts.num_shared_groups >= 1
        for rows in (4096, 1, 500, 8, 64, 1, 1, 4096):
            torch.testing.assert_close(graphed(x[:rows]), (x[:rows] @ weight).relu() * 2)
        assert graphed.backend.executables().num_switches > 0
        assert "EAGER" not in graphed.counters.by_runtime_mode
        assert graphed.qualify().passed


def test_a_switch_waits_for_nothing_and_harms_no_queued_launch() -> None:
    """The update comes while the executable's last launch still runs, on another stream even."""
    with torch.no_grad():
        backend = select_backend("cuda", shares_executables=True)
        large, small = (torch.zeros(size, device="cuda") for size in (1 << 26, 16))
        (first, _), (second, _) = (capture(backend, lambda t: t.add_(1), each) for each in (large, small))
        assert backend.executables().num_executables == 1
        large.zero_()
        small.zero_()
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        torch.cuda._sleep(200_000_000)  # about 0.1 s, in which all of these are queued
        started = torch.cuda.Event()
        started.record()
        for _ in range(20):
            first.replay()
            with torch.cuda.stream(side):
                second.replay()
        assert not started.query(), "the host was never made to wait"
        torch.cuda.synchronize()
        assert bool((large == 20).all()) and bool((small == 20).all())
        assert backend.executables().num_switches == 40 - 1
        first.close()
        second.close()
        backend.close()


def test_random_numbers_go_on() -> None:
    x = torch.zeros(8, 256, device="cuda")
    config = GraphConfig(mode="full", sizes=(2, 4, 8), executables="shared")
    with Graphed(lambda x: x + torch.rand_like(x), example=(x,), config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        assert graphed.backend.executables().num_executables == 3
        drawn = [graphed(x[:rows])[0].clone() for rows in (2, 4, 8, 2, 4, 8)]
        assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_a_thread_that_has_not_called_cuda_yet_may_replay() -> None:
    with torch.no_grad():
        backend = select_backend("cuda", shares_executables=True)
        tensors = [torch.zeros(4, device="cuda") for _ in range(2)]
        graphs = [capture(backend, lambda t: t.add_(1), each)[0] for each in tensors]
        for tensor in tensors:
            tensor.zero_()
        torch.cuda.synchronize()
        failures: list[BaseException] = []

        def replay() -> None:
            try:
                for graph in graphs:
                    graph.replay()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=replay)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert failures == [] and [tensor.tolist() for tensor in tensors] == [[1.0] * 4] * 2
        for graph in graphs:
            graph.close()
        backend.close()


@pytest.mark.parametrize("mode", ["full_and_piecewise", "piecewise"])
def test_an_engine_gives_the_tokens_of_own_executables(tmp_path: Any, mode: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    prompts = [[3, 7, 11], [5] * 40, [2, 4, 6, 8, 10], [9]]
    params = [
        SamplingParams(max_tokens=n, temperature=t, seed=1, ignore_eos=True)
        for n, t in ((9, 0), (3, 1), (6, 0), (2, 1))
    ]
    found, counts = {}, {}
    for setting in ("own", "shared"):
        limits: dict[str, Any] = {"decode_sizes": (1, 2, 3, 4), "token_sizes": (8, 16, 64), "max_num_reqs": 4}
        with LLM(str(folder), mode=mode, executables=setting, max_model_len=256, kv_tokens=1024, **limits) as llm:
            found[setting] = [output.token_ids for output in llm.generate(prompts, params)]
            counts[setting] = llm.stats()["graphs"]["executables"]
    assert found["own"] == found["shared"]
    assert counts["shared"]["count"] < counts["own"]["count"]
    assert counts["shared"]["switches"] > 0 == counts["own"]["switches"]
