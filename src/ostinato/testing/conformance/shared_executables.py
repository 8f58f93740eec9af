"""What a `CaptureBackend` must do that was made with ``shares_executables``: all that others must, and these.

Subclass with a ``backend`` fixture; pytest collects the tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ostinato.runtime.capture import CaptureBackend, CapturedGraph
from ostinato.testing.conformance.capture_backend import CaptureBackendConformance

__all__ = ["SharedExecutablesConformance"]


def _double_and_add(t: torch.Tensor) -> torch.Tensor:
    return t * 2 + 1


class SharedExecutablesConformance(CaptureBackendConformance):
    """The suite. A subclass defines ``backend`` as a pytest fixture."""

    def record_sizes(self, backend: CaptureBackend, *sizes: int) -> list[tuple[CapturedGraph, torch.Tensor, Any]]:
        """One graph of the same work for each size: graph, input, output."""
        inputs = [torch.zeros(size, device=backend.device) for size in sizes]
        return [(graph, x, y) for x in inputs for graph, y in [self.record(backend, _double_and_add, x)]]

    def test_graphs_of_one_topology_share_and_each_replays_its_own_work(self, backend: CaptureBackend) -> None:
        graphs = self.record_sizes(backend, 8, 4, 2)
        counts = backend.executables()
        assert (counts.num_executables, counts.num_shared_groups, counts.num_switches) == (1, 1, 0)
        assert backend.memory().num_graphs == 3 and counts.num_nodes == graphs[0][0].num_nodes
        for value, index in enumerate([0, 1, 2, 2, 0, 1, 1]):
            graph, x, y = graphs[index]
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [2.0 * value + 1] * len(x)
        assert backend.executables().num_switches == 4, "the first holds the executable until another replays"

    def test_launches_that_are_queued_keep_what_they_were_launched_with(self, backend: CaptureBackend) -> None:
        tensors = [torch.zeros(size, device=backend.device) for size in (1 << 22, 2)]
        graphs = [self.record(backend, lambda t: t.add_(1), each)[0] for each in tensors]
        assert backend.executables().num_executables == 1
        for tensor in tensors:
            tensor.zero_()
        for _ in range(50):  # no wait between: on a device the large one still runs when the update comes
            for graph in graphs:
                graph.replay()
        assert [bool((tensor == 50).all()) for tensor in tensors] == [True, True]

    def test_another_topology_has_its_own(self, backend: CaptureBackend) -> None:
        x = torch.ones(4, device=backend.device)
        first, y = self.record(backend, _double_and_add, x)
        longer, z = self.record(backend, lambda t: ((t * 2 + 1) * 3).cumsum(0), x)
        assert backend.executables().num_executables == 2 and backend.executables().num_shared_groups == 0
        for _ in range(2):
            first.replay()
            longer.replay()
        assert y.tolist() == [3.0] * 4 and z.tolist() == [9.0, 18.0, 27.0, 36.0]
        assert backend.executables().num_switches == 0

    def test_segments_of_one_plan_do_not_share(self, backend: CaptureBackend) -> None:
        x = torch.ones(4, device=backend.device).mul_(2)  # CUDA loads the kernel
        with backend.phase():
            for _ in range(2):
                with backend.session():
                    for _ in range(3):
                        backend.begin()
                        x.mul_(2)
                        backend.end()
        counts = backend.executables()
        assert (counts.num_executables, counts.num_shared_groups) == (3, 3), "each with that at its place of the other"

    def test_graphs_that_draw_have_their_own(self, backend: CaptureBackend) -> None:
        x = torch.zeros(64, device=backend.device)
        drawn = [self.record(backend, torch.rand_like, x) for _ in range(2)]
        self.record_sizes(backend, 4, 2)
        assert backend.executables().num_executables == 4, "nor does anything that this callable captures afterwards"
        seen = []
        for graph, y in [*drawn, *drawn]:
            graph.replay()
            seen.append(y.clone())
        assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])

    def test_graphs_that_draw_from_a_generator_of_the_users_own_have_their_own(self, backend: CaptureBackend) -> None:
        own = torch.Generator(backend.device)
        drawn = [self.record(backend, lambda: torch.rand(64, generator=own, device=backend.device)) for _ in range(2)]
        assert backend.executables().num_executables == 2
        seen = []
        for graph, y in [*drawn, *drawn]:
            graph.replay()
            seen.append(y.clone())
        assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])

    def test_a_drawing_op_is_seen_without_a_warm_up(self, backend: CaptureBackend) -> None:
        x = torch.zeros(64, device=backend.device)
        torch.rand_like(x)  # CUDA loads the kernel
        with backend.phase():
            for _ in range(2):
                with backend.session():
                    backend.begin()
                    torch.rand_like(x)
                    backend.end()
        assert backend.executables().num_executables == 2

    def test_a_segment_behind_one_that_draws_may_share(self, backend: CaptureBackend) -> None:
        x = torch.rand_like(torch.zeros(64, device=backend.device)).mul_(2)  # CUDA loads the kernels
        with backend.phase():
            for _ in range(2):
                with backend.session():
                    for draws in (True, False):
                        backend.begin()
                        _ = torch.rand_like(x) if draws else x.mul_(2)
                        backend.end()
        counts = backend.executables()
        assert (counts.num_executables, counts.num_shared_groups) == (3, 1)

    def test_the_last_graph_takes_the_executable_along(self, backend: CaptureBackend) -> None:
        (first, *_), (second, x, y) = self.record_sizes(backend, 8, 4)
        first.replay()
        first.close()
        first.close()
        assert backend.executables().num_executables == 1
        x.fill_(3.0)
        second.replay()
        assert y.tolist() == [7.0] * 4
        second.close()
        assert backend.executables().num_executables == backend.executables().num_nodes == 0
        ((third, x, y),) = self.record_sizes(backend, 2)
        x.fill_(1.0)
        third.replay()
        assert y.tolist() == [3.0] * 2

    def test_replays_of_two_threads_do_not_mix(self, backend: CaptureBackend) -> None:
        graphs = self.record_sizes(backend, 8, 4)
        wrong: list[list[float]] = []

        def work(graph: CapturedGraph, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
            def run() -> None:
                for value in range(200):
                    x.fill_(value)
                    graph.replay()
                    if y.tolist() != [2.0 * value + 1] * len(x):
                        wrong.append(y.tolist())

            return run

        threads = [threading.Thread(target=work(*each)) for each in graphs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == [] and backend.executables().num_switches > 0
