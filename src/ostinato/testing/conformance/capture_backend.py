"""What a `CaptureBackend` must do. Subclass with a ``backend`` fixture; pytest collects the tests.

A device without graphs of its own passes by behaving as CUDA does: fixed addresses, refusals, recycling.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ostinato.errors import (
    CaptureError,
    CaptureNotAllowedError,
    ClosedError,
    DynamicShapeError,
    HostSyncError,
    JitInCaptureError,
    NestedCaptureError,
    UnbrokenOpError,
    UnknownGeneratorError,
)
from ostinato.runtime.breaks import jit_mark
from ostinato.runtime.capture import CaptureBackend, CapturedGraph
from ostinato.runtime.ops import ATTENTION_OPS

__all__ = ["CaptureBackendConformance"]


class CaptureBackendConformance:
    """The suite. A subclass defines ``backend`` as a pytest fixture."""

    @pytest.fixture(autouse=True)
    def _no_grad(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    def record(self, backend: CaptureBackend, fn: Callable[..., Any], *args: torch.Tensor) -> tuple[CapturedGraph, Any]:
        """Capture ``fn(*args)`` after a warm-up; its graph and its output."""
        with backend.session():
            fn(*args)
        with backend.phase(), backend.session():
            backend.begin()
            out = fn(*args)
            graph: CapturedGraph = backend.end()
        return graph, out

    def test_replay_reads_new_values_at_old_addresses(self, backend: CaptureBackend) -> None:
        x = torch.arange(8.0, device=backend.device)
        graph, y = self.record(backend, lambda t: t * 2 + 1, x)
        x.fill_(5.0)
        graph.replay()
        assert y.tolist() == [11.0] * 8
        assert graph.num_nodes >= 1

    def test_replay_does_not_follow_a_new_tensor(self, backend: CaptureBackend) -> None:
        holder = {"x": torch.ones(4, device=backend.device)}
        old = holder["x"]
        graph, y = self.record(backend, lambda: holder["x"] + 1)
        holder["x"] = torch.full((4,), 100.0, device=backend.device)
        old.fill_(7.0)
        graph.replay()
        assert y.tolist() == [8.0] * 4

    def test_in_place_writes_are_replayed(self, backend: CaptureBackend) -> None:
        state = torch.zeros(3, device=backend.device)
        graph, _ = self.record(backend, lambda: state.add_(1.0))
        state.zero_()
        graph.replay()
        graph.replay()
        assert state.tolist() == [2.0] * 3

    def test_views_stay_views(self, backend: CaptureBackend) -> None:
        x = torch.arange(6.0, device=backend.device).view(2, 3)
        graph, y = self.record(backend, lambda t: t.t()[1:].contiguous() * 1, x)
        x.copy_(torch.arange(10.0, 16.0).view(2, 3))
        graph.replay()
        assert torch.equal(y.cpu(), torch.arange(10.0, 16.0).view(2, 3).t()[1:])

    def test_host_scalars_are_frozen(self, backend: CaptureBackend) -> None:
        scale = {"value": 2.0}
        x = torch.ones(2, device=backend.device)
        graph, y = self.record(backend, lambda t: t * scale["value"], x)
        scale["value"] = 50.0
        graph.replay()
        assert y.tolist() == [2.0, 2.0]

    def test_random_numbers_advance(self, backend: CaptureBackend) -> None:
        x = torch.zeros(64, device=backend.device)
        graph, y = self.record(backend, lambda t: torch.rand_like(t), x)
        graph.replay()
        first = y.clone()
        graph.replay()
        assert not torch.equal(first, y)

    def test_replays_draw_from_a_generator_of_the_users_own_as_eager_would(self, backend: CaptureBackend) -> None:
        own, twin = (torch.Generator(backend.device) for _ in range(2))
        graph, y = self.record(backend, lambda: torch.rand(64, generator=own, device=backend.device))
        for seed in (5, 6):
            own.manual_seed(seed)
            twin.manual_seed(seed)
            for _ in range(3):
                graph.replay()
                assert torch.equal(y, torch.rand(64, generator=twin, device=backend.device))
            assert torch.equal(own.get_state(), twin.get_state()), "and it goes on where eager would"

    def test_segments_draw_from_one_generator_in_turns(self, backend: CaptureBackend) -> None:
        own, twin = (torch.Generator(backend.device) for _ in range(2))

        def draw(generator: torch.Generator) -> torch.Tensor:
            return torch.rand(64, generator=generator, device=backend.device)

        with backend.session():
            draw(own)
        with backend.phase(), backend.session():
            backend.begin()
            first = draw(own)
            one = backend.end()
            draw(own)  # eagerly, as a break does
            backend.begin()
            second = draw(own)
            two = backend.end()
        own.manual_seed(3)
        twin.manual_seed(3)
        for _ in range(2):
            one.replay()
            two.replay()
            assert torch.equal(first, draw(twin)) and torch.equal(second, draw(twin))

    def test_a_graph_holds_the_generator_that_it_draws_from(self, backend: CaptureBackend) -> None:
        twin = torch.Generator(backend.device)

        def record_and_let_go() -> tuple[CapturedGraph, Any]:
            own = torch.Generator(backend.device).manual_seed(3)
            recorded = self.record(backend, lambda: torch.rand(64, generator=own, device=backend.device))
            twin.set_state(own.get_state())
            return recorded

        graph, y = record_and_let_go()
        gc.collect()
        graph.replay()
        assert torch.equal(y, torch.rand(64, generator=twin, device=backend.device))

    def test_a_generator_that_no_warm_up_has_drawn_from_is_refused(self, backend: CaptureBackend) -> None:
        own = torch.Generator(backend.device).manual_seed(3)
        torch.rand(4, generator=own, device=backend.device)  # nobody has watched that
        with backend.phase(), backend.session():
            backend.begin()
            with pytest.raises(UnknownGeneratorError, match="no warm-up run") as caught:
                torch.rand(4, generator=own, device=backend.device)
            backend.abort()
        assert "capture_backend.py" in caught.value.context["at"] and "before warm_up" in caught.value.fix
        graph, y = self.record(backend, lambda: torch.rand(4, generator=own, device=backend.device))
        graph.replay()
        first = y.clone()
        graph.replay()
        assert not torch.equal(y, first), "with a warm-up it is taken"

    def test_a_capture_that_failed_leaves_the_generator_usable(self, backend: CaptureBackend) -> None:
        own = torch.Generator(backend.device).manual_seed(3)
        x = torch.zeros(4, device=backend.device)
        with backend.session():
            x.uniform_(generator=own)
        with pytest.raises(HostSyncError), backend.phase(), backend.session():
            backend.begin()
            x.uniform_(generator=own).sum().item()
        assert x.uniform_(generator=own).sum().item() > 0
        graph, y = self.record(backend, lambda: torch.rand(4, generator=own, device=backend.device))
        graph.replay()
        assert y.sum().item() > 0

    def test_multiple_outputs(self, backend: CaptureBackend) -> None:
        x = torch.tensor([3.0, 1.0, 2.0], device=backend.device)
        graph, (values, indices) = self.record(backend, lambda t: torch.sort(t), x)
        x.copy_(torch.tensor([5.0, 9.0, 7.0]))
        graph.replay()
        assert values.tolist() == [5.0, 7.0, 9.0]
        assert indices.tolist() == [0, 2, 1]

    def test_what_the_session_has_made_is_told_from_what_it_was_given(self, backend: CaptureBackend) -> None:
        x = torch.ones(8, device=backend.device)
        with backend.phase():
            with backend.session():
                backend.begin()
                earlier = x * 2
                graphs = [backend.end()]  # they keep the memory
            with backend.session():
                backend.begin()
                made = earlier * 2
                empty = torch.empty_like(x)
                graphs.append(backend.end())
                between = x * 3
                assert backend.has_made(made) and backend.has_made(made[2:4]) and backend.has_made(empty)
                assert not any(backend.has_made(given) for given in (x, earlier, between))
        for graph in graphs:
            graph.close()

    def test_externals_know_which_segment_used_them_first(self, backend: CaptureBackend) -> None:
        tables = [torch.ones(8, device=backend.device) for _ in range(4)]
        graphs = []
        with backend.phase():
            with backend.session():
                y = tables[0] + tables[1]  # warm-up is no segment
            with backend.session():
                for table in (tables[0], None, tables[1]):  # one holds nothing, and is none
                    backend.begin()
                    if table is not None:
                        y = table * 2 + tables[0]
                    graphs.append(backend.end())
                backend.note_external(tables[2], "break attend")
                backend.begin()
                y = y + tables[3]
                graphs.append(backend.end())
                found = {external.address: external.first_use for external in backend.externals()}
        uses = [found[table.untyped_storage().data_ptr()] for table in tables]
        assert uses == ["0", "1", "break attend before 2", "2"]
        for graph in graphs:
            graph.close()
        del y

    def test_an_empty_segment_has_no_nodes(self, backend: CaptureBackend) -> None:
        x = torch.zeros(4, device=backend.device)
        graph, _ = self.record(backend, lambda t: t.view(2, 2), x)
        assert graph.num_nodes == 0
        graph.replay()

    def test_intermediates_are_recycled_by_later_captures(self, backend: CaptureBackend) -> None:
        x = torch.ones(1 << 18, device=backend.device)
        graphs = []

        def chain(t: torch.Tensor) -> torch.Tensor:
            for _ in range(8):
                t = t + 1
            return t[:4].clone()

        graph, _ = self.record(backend, chain, x)
        graphs.append(graph)
        after_first = backend.memory().reserved_bytes
        for _ in range(3):
            graph, _ = self.record(backend, chain, x)
            graphs.append(graph)
        assert backend.memory().reserved_bytes <= after_first + (1 << 20)
        assert backend.memory().num_graphs == 4

    def test_usage_tells_what_a_capture_took(self, backend: CaptureBackend) -> None:
        x = torch.ones(1 << 22, device=backend.device)
        before = backend.usage()
        _graph, _out = self.record(backend, lambda t: t + 1, x)
        after = backend.usage()
        assert after.allocator_bytes - before.allocator_bytes >= x.nbytes
        assert min(after.driver_bytes, before.driver_bytes) >= 0
        assert after.live_bytes <= after.allocator_bytes

    def test_usage_tells_what_tensors_keep_of_it(self, backend: CaptureBackend) -> None:
        x = torch.ones(1 << 22, device=backend.device)
        before = backend.usage()
        _graph, out = self.record(backend, lambda t: (t + 1) * 2, x)
        assert backend.usage().live_bytes - before.live_bytes >= x.nbytes
        del out
        assert backend.usage().live_bytes - before.live_bytes < x.nbytes

    def test_held_outputs_are_not_recycled(self, backend: CaptureBackend) -> None:
        x = torch.ones(1 << 16, device=backend.device)
        first, y = self.record(backend, lambda t: t * 3, x)
        _second, z = self.record(backend, lambda t: t * 5, x)
        first.replay()
        assert y[0].item() == 3.0
        assert y.data_ptr() != z.data_ptr()

    @pytest.mark.parametrize(
        ("name", "fn", "error"),
        [
            ("item", lambda t: t.sum().item(), HostSyncError),
            ("tolist", lambda t: t.tolist(), HostSyncError),
            ("cpu", lambda t: t.cpu(), HostSyncError),
            ("print", lambda t: repr(t), HostSyncError),
            ("bool", lambda t: bool(t.sum() > 0), HostSyncError),
            ("numpy", lambda t: t.cpu().numpy(), HostSyncError),
            ("equal", lambda t: torch.equal(t, t + 1), HostSyncError),
            ("host data", lambda t: torch.tensor([1.0, 2.0], device=t.device), HostSyncError),
            ("nonzero", lambda t: torch.nonzero(t), DynamicShapeError),
            ("masked_select", lambda t: torch.masked_select(t, t > 0), DynamicShapeError),
            ("boolean index", lambda t: t[t > 0], DynamicShapeError),
            ("unique", lambda t: torch.unique(t), DynamicShapeError),
            ("growing storage", lambda t: t.clone().resize_(2 * t.numel()), CaptureError),
        ],
    )
    def test_refuses_what_a_graph_cannot_hold(
        self, backend: CaptureBackend, name: str, fn: Callable[[torch.Tensor], Any], error: type[CaptureError]
    ) -> None:
        x = torch.arange(4.0, device=backend.device)
        with pytest.raises(error) as caught:
            self.record(backend, fn, x)
        assert "capture_backend.py" in caught.value.context["at"], "the error names the user's line"
        assert caught.value.fix
        graph, y = self.record(backend, lambda t: t + 1, x)  # the backend is as good as new
        graph.replay()
        assert y.tolist() == [1.0, 2.0, 3.0, 4.0]

    def test_a_failed_capture_leaves_allocation_and_rng_usable(self, backend: CaptureBackend) -> None:
        x = torch.arange(4.0, device=backend.device)
        with pytest.raises(ZeroDivisionError):
            self.record_raw(backend, lambda: (x + torch.rand_like(x), 1 // 0))
        assert torch.rand(4, device=backend.device).sum().item() >= 0
        graph, y = self.record(backend, lambda t: t * 2, x)
        graph.replay()
        assert y.tolist() == [0.0, 2.0, 4.0, 6.0]

    def record_raw(self, backend: CaptureBackend, fn: Callable[[], Any]) -> tuple[CapturedGraph, Any]:
        """Capture ``fn()`` without a warm-up."""
        with backend.phase(), backend.session():
            backend.begin()
            out = fn()
            return backend.end(), out

    def test_failed_captures_do_not_leak(self, backend: CaptureBackend) -> None:
        x = torch.ones(1 << 18, device=backend.device)

        def fail() -> None:
            for _ in range(4):
                y = x + 1
            raise ZeroDivisionError(y.shape)

        sizes = []
        for _ in range(6):
            with pytest.raises(ZeroDivisionError):
                self.record_raw(backend, fail)
            gc.collect()
            sizes.append(backend.memory().reserved_bytes)
        assert sizes[-1] <= sizes[1] + (1 << 20), sizes
        assert backend.memory().num_graphs == 0

    def test_first_time_jit_is_refused(self, backend: CaptureBackend, request: pytest.FixtureRequest) -> None:
        name = f"kernel of {request.node.nodeid}"
        with pytest.raises(JitInCaptureError):
            self.record_raw(backend, lambda: jit_mark(name))
        jit_mark(name)
        self.record_raw(backend, lambda: jit_mark(name))[0].close()

    def test_forbidden_ops_are_refused_by_name(self, backend: CaptureBackend) -> None:
        q = torch.randn(1, 2, 4, 8, device=backend.device)
        with backend.phase(), backend.session():
            backend.begin(forbid=ATTENTION_OPS)
            with pytest.raises(UnbrokenOpError, match=r"scaled_dot_product|softmax"):
                torch.nn.functional.scaled_dot_product_attention(q, q, q)
            backend.abort()

    def test_capture_outside_the_phase_is_refused(self, backend: CaptureBackend) -> None:
        with backend.session(), pytest.raises(CaptureNotAllowedError):
            backend.begin()

    def test_nested_capture_is_refused(self, backend: CaptureBackend) -> None:
        with backend.phase(), backend.session():
            backend.begin()
            with pytest.raises(NestedCaptureError):
                backend.begin()
            with pytest.raises(NestedCaptureError), backend.phase():
                pass
            backend.abort()
            with backend.phase():  # in a break, say
                pass
            with pytest.raises(NestedCaptureError), backend.session():
                pass

    def test_end_without_begin(self, backend: CaptureBackend) -> None:
        with backend.phase(), backend.session(), pytest.raises(CaptureError):
            backend.end()

    def test_is_capturing(self, backend: CaptureBackend) -> None:
        with backend.phase(), backend.session():
            assert not backend.is_capturing()
            backend.begin()
            assert backend.is_capturing()
            backend.abort()
            assert not backend.is_capturing()
            backend.abort()

    def test_eager_work_between_segments_is_not_recorded(self, backend: CaptureBackend) -> None:
        x = torch.zeros(2, device=backend.device)
        with backend.phase(), backend.session():
            backend.begin()
            y = x + 1
            first = backend.end()
            x.add_(100.0)  # eager
            backend.begin()
            z = y * 2
            second = backend.end()
        x.fill_(1.0)
        first.replay()
        second.replay()
        assert z.tolist() == [4.0, 4.0]
        assert x.tolist() == [1.0, 1.0]

    def test_garbage_collection_is_frozen_in_the_phase(self, backend: CaptureBackend) -> None:
        assert gc.isenabled()
        with backend.phase():
            assert not gc.isenabled()
        assert gc.isenabled()

    def test_another_thread_may_work_but_not_capture(self, backend: CaptureBackend) -> None:
        x = torch.ones(4, device=backend.device)
        found: list[object] = []

        def elsewhere() -> None:
            found.append((torch.ones(4, device=backend.device) + 1).sum().item())
            try:
                with backend.phase():
                    pass
            except CaptureNotAllowedError as error:
                found.append(error)

        with backend.phase(), backend.session():
            backend.begin()
            y = x + 1
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            graph = backend.end()
        assert found[0] == 8.0
        assert isinstance(found[1], CaptureNotAllowedError)
        x.fill_(2.0)
        graph.replay()
        assert y.tolist() == [3.0] * 4

    def test_close_is_idempotent_and_final(self, backend: CaptureBackend) -> None:
        x = torch.ones(2, device=backend.device)
        graph, _ = self.record(backend, lambda t: t + 1, x)
        graph.close()
        graph.close()
        with pytest.raises(ClosedError):
            graph.replay()
        assert backend.memory().num_graphs == 0
        backend.close()
        backend.close()
        with pytest.raises(ClosedError), backend.session():
            pass
