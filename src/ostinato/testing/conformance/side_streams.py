"""What a `CaptureBackend` must do about side streams: joined ones replay, others are refused by name, nothing leaks.

Subclass with a ``backend`` fixture. Programs take the streams of the device's own torch module (`torch.cuda`, and
`torch.cpu`, whose streams do nothing), so that one program is judged alike wherever it is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ostinato.errors import HostSyncError, UnjoinedStreamError
from ostinato.runtime.capture import CaptureBackend, CapturedGraph

__all__ = ["SideStreamConformance"]

Wait = Callable[[Any, Any], None]


def _by_stream(waiting: Any, other: Any) -> None:
    waiting.wait_stream(other)


def _by_returned_event(waiting: Any, other: Any) -> None:
    waiting.wait_event(other.record_event())


class SideStreamConformance:
    """The suite. A subclass defines ``backend`` as a pytest fixture."""

    @pytest.fixture(autouse=True)
    def _without_gradients(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    @pytest.fixture
    def streams(self, backend: CaptureBackend) -> Any:
        """The torch module with the device's streams and events."""
        return torch.get_device_module(backend.device)

    @pytest.fixture(params=["stream", "returned event", "event on streams", "event on the current stream"])
    def wait(self, request: pytest.FixtureRequest, streams: Any) -> Wait:
        """One of the ways in which a stream is made to wait for another."""

        def by_event(waiting: Any, other: Any) -> None:
            event = streams.Event()
            event.record(other)
            event.wait(waiting)

        def by_current(waiting: Any, other: Any) -> None:
            event = streams.Event()
            with streams.stream(other):
                event.record()
            with streams.stream(waiting):
                event.wait()

        ways: dict[str, Wait] = {
            "stream": _by_stream,
            "returned event": _by_returned_event,
            "event on streams": by_event,
            "event on the current stream": by_current,
        }
        return ways[request.param]

    def segment(self, backend: CaptureBackend, fn: Callable[..., Any], *args: Any) -> tuple[CapturedGraph, Any]:
        """One segment of ``fn(*args)``, which has run before."""
        with backend.phase(), backend.session():
            backend.begin()
            out = fn(*args)
            return backend.end(), out

    def is_as_new(self, backend: CaptureBackend, *sides: Any) -> None:
        """After a refusal: the next capture works, and side streams are no part of any capture."""
        streams = torch.get_device_module(backend.device)
        x = torch.ones(4, device=backend.device)
        graph, y = self.segment(backend, lambda: x + 1)
        graph.replay()
        streams.synchronize()
        assert y.tolist() == [2.0] * 4
        for side in sides:
            with streams.stream(side):
                z = x * 3
            side.wait_stream(streams.current_stream())
            streams.current_stream().wait_stream(side)
            streams.synchronize()
            assert z.tolist() == [3.0] * 4
        graph.close()

    def test_a_fork_that_is_joined_replays(self, backend: CaptureBackend, streams: Any, wait: Wait) -> None:
        x = torch.ones(4, device=backend.device)
        side = streams.Stream()

        def program() -> torch.Tensor:
            main = streams.current_stream()
            wait(side, main)
            with streams.stream(side):
                doubled = x * 2
            wait(main, side)
            return doubled + 1

        graph, y = self.segment(backend, program)
        x.fill_(5.0)
        streams.synchronize()
        graph.replay()
        streams.synchronize()
        assert y.tolist() == [11.0] * 4
        graph.close()

    def test_a_fork_that_is_not_joined_is_named(self, backend: CaptureBackend, streams: Any, wait: Wait) -> None:
        x = torch.ones(4, device=backend.device)
        joined, side = streams.Stream(), streams.Stream()

        def program() -> torch.Tensor:
            main = streams.current_stream()
            for stream in (joined, side):
                wait(stream, main)
                with streams.stream(stream):
                    x * 2
            wait(main, joined)
            return x + 1

        with pytest.raises(UnjoinedStreamError, match="not joined") as caught:
            self.segment(backend, program)
        assert caught.value.context["streams"] == [_name(side)]
        assert "forked from the capturing stream at" in caught.value.message
        assert "side_streams.py" in caught.value.context["at"]
        assert caught.value.fix
        self.is_as_new(backend, joined, side)

    def test_a_join_counts_for_the_work_before_it(self, backend: CaptureBackend, streams: Any, wait: Wait) -> None:
        x = torch.ones(4, device=backend.device)
        side = streams.Stream()

        def program() -> None:
            main = streams.current_stream()
            wait(side, main)
            with streams.stream(side):
                y = x * 2
                wait(main, side)
                y.view(2, 2)  # no work
                if works_on:
                    y.add_(1)

        works_on = False
        self.segment(backend, program)[0].close()
        works_on = True
        with pytest.raises(UnjoinedStreamError) as caught:
            self.segment(backend, program)
        assert caught.value.context["streams"] == [_name(side)]
        self.is_as_new(backend, side)

    def test_chains_are_followed(self, backend: CaptureBackend, streams: Any, wait: Wait) -> None:
        x = torch.ones(4, device=backend.device)
        near, far = streams.Stream(), streams.Stream()

        def program(joins: tuple[tuple[Any, Any], ...]) -> torch.Tensor:
            main = streams.current_stream()
            wait(near, main)
            with streams.stream(near):
                a = x + 1
            wait(far, near)
            with streams.stream(far):
                b = a * 2
            for waiting, other in joins:
                wait(main if waiting is None else waiting, other)
            return b

        for joins in (((near, far), (None, near)), ((None, far),)):
            graph, y = self.segment(backend, program, joins)
            graph.replay()
            streams.synchronize()
            assert y.tolist() == [4.0] * 4
            graph.close()
        wrong: list[tuple[tuple[tuple[Any, Any], ...], list[Any]]] = [
            (((None, near),), [far]),
            (((None, near), (near, far)), [far]),  # the wrong way round
            ((), [near, far]),
        ]
        for joined, left in wrong:
            with pytest.raises(UnjoinedStreamError) as caught:
                self.segment(backend, program, joined)
            assert caught.value.context["streams"] == [_name(stream) for stream in left]
            assert f"{_name(far)} (forked from {_name(near)} at" in caught.value.message
        self.is_as_new(backend, near, far)

    def test_work_on_a_stream_without_a_fork_is_named(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        side = streams.Stream()

        def program() -> None:
            with streams.stream(side):
                x * 2

        with pytest.raises(UnjoinedStreamError, match="was not forked") as caught:
            self.segment(backend, program)
        assert caught.value.context["stream"] == _name(side)
        assert "side_streams.py" in caught.value.context["at"]
        self.is_as_new(backend, side)

    def test_waiting_for_work_of_elsewhere_is_named(self, backend: CaptureBackend, streams: Any, wait: Wait) -> None:
        side = streams.Stream()
        with pytest.raises(UnjoinedStreamError, match="across the border of a segment") as caught:
            self.segment(backend, lambda: wait(streams.current_stream(), side))
        assert caught.value.context["waits_for"] == _name(side)
        assert "side_streams.py" in caught.value.context["at"]
        assert "before the graph" in caught.value.fix
        assert caught.value.__cause__ is None, "refused before the device does, whose capture stays valid"
        self.is_as_new(backend, side)

    def test_a_wait_for_what_was_recorded_before_is_named(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        event, side = streams.Event(), streams.Stream()
        with streams.stream(side):
            x + 1
            event.record()
        with pytest.raises(UnjoinedStreamError, match="an event that was not recorded in it") as caught:
            self.segment(backend, lambda: streams.current_stream().wait_event(event))
        assert "side_streams.py" in caught.value.context["at"]
        self.is_as_new(backend, side)

    def test_a_wait_for_what_was_recorded_in_a_break_is_named(
        self, backend: CaptureBackend, streams: Any, wait: Wait
    ) -> None:
        x = torch.ones(4, device=backend.device)
        side = streams.Stream()
        with backend.phase(), backend.session():
            with streams.stream(side):  # where a break would be
                y = x + 1
            done = side.record_event()
            done.record(side)
            wait(streams.current_stream(), side)
            backend.begin()
            y + 1
            with pytest.raises(UnjoinedStreamError, match="across the border of a segment") as caught:
                streams.current_stream().wait_event(done)
            assert caught.value.context["waits_for"] == _name(side)
            assert caught.value.__cause__ is None
        self.is_as_new(backend, side)

    def test_waits_before_the_capture_and_beside_it_are_free(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        event, side, other = streams.Event(), streams.Stream(), streams.Stream()
        event.record(side)
        streams.current_stream().wait_event(event)

        def program() -> torch.Tensor:
            other.wait_event(event)  # neither is of the capture
            other.wait_stream(side)
            return x + 1

        graph, y = self.segment(backend, program)
        graph.replay()
        streams.synchronize()
        assert y.tolist() == [2.0] * 4
        graph.close()

    def test_methods_that_were_taken_before_are_followed(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        event, near, far = streams.Event(), streams.Stream(), streams.Stream()
        record, wait, wait_stream, wait_event = event.record, event.wait, near.wait_stream, far.wait_event

        def program(joins: bool) -> None:
            main = streams.current_stream()
            wait_stream(main)
            with streams.stream(near):
                y = x * 2
                record()
            wait_event(event)
            with streams.stream(far):
                y.add_(1)
            record(far)
            if joins:
                wait()

        self.segment(backend, lambda: program(joins=True))[0].close()
        with pytest.raises(UnjoinedStreamError, match="not joined") as caught:
            self.segment(backend, lambda: program(joins=False))
        assert caught.value.context["streams"] == [_name(near), _name(far)]
        assert caught.value.__cause__ is None
        self.is_as_new(backend, near, far)

    def test_an_event_does_not_leave_its_segment(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        event, side = streams.Event(), streams.Stream()
        with backend.phase(), backend.session():
            backend.begin()
            x + 1
            event.record()
            graph = backend.end()
            with pytest.raises(UnjoinedStreamError, match="across the border"):  # where a break would be
                side.wait_event(event)
            graph.close()
        self.is_as_new(backend, side)

    def test_a_segment_ends_on_its_own_stream(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        side = streams.Stream()
        with backend.phase(), backend.session():
            backend.begin()
            main = streams.current_stream()
            side.wait_stream(main)
            with streams.stream(side):
                x + 1
                main.wait_stream(side)
                with pytest.raises(UnjoinedStreamError, match="not the stream that it began on"):
                    backend.end()
        self.is_as_new(backend, side)

    def test_a_wait_for_the_device_is_named(self, backend: CaptureBackend, streams: Any) -> None:
        x = torch.ones(4, device=backend.device)
        wait = streams.synchronize

        def program() -> None:
            x + 1
            wait()

        with pytest.raises(HostSyncError, match="synchronize") as caught:
            self.segment(backend, program)
        assert "side_streams.py" in caught.value.context["at"]
        assert caught.value.__cause__ is None, "refused before the device does, whose capture stays valid"
        with backend.phase(), backend.session():
            backend.begin()
            x + 1
            graph = backend.end()
            wait()  # where a break would be
            graph.close()
        self.is_as_new(backend)

    @pytest.mark.parametrize("method", ["synchronize", "query"])
    @pytest.mark.parametrize("what", ["event", "stream"])
    def test_a_host_that_asks_for_work_of_the_capture_is_named(
        self, backend: CaptureBackend, streams: Any, what: str, method: str
    ) -> None:
        if not hasattr(streams.Stream if what == "stream" else streams.Event, method):
            pytest.skip("torch has no such call")
        x = torch.ones(4, device=backend.device)

        def program() -> None:
            event, stream = streams.Event(), streams.current_stream()
            getattr(event, method)()  # not recorded yet: nothing to ask for
            x + 1
            event.record(stream)
            getattr(event if what == "event" else stream, method)()

        with pytest.raises(HostSyncError, match=method) as caught:
            self.segment(backend, program)
        assert "side_streams.py" in caught.value.context["at"]
        assert caught.value.__cause__ is None, "refused before the device does, whose capture stays valid"
        with backend.phase(), backend.session():  # where a break would be
            program()
        self.is_as_new(backend)

    def test_what_fails_inside_of_a_fork_leaves_nothing(
        self, backend: CaptureBackend, streams: Any, wait: Wait
    ) -> None:
        x = torch.ones(4, device=backend.device)
        near, far = streams.Stream(), streams.Stream()

        def program() -> None:
            wait(near, streams.current_stream())
            wait(far, near)
            with streams.stream(far):
                raise ZeroDivisionError(x * 2)

        with pytest.raises(ZeroDivisionError):
            self.segment(backend, program)
        self.is_as_new(backend, near, far)

    def test_torch_is_left_as_it_was(self, backend: CaptureBackend, streams: Any) -> None:
        names = ((streams.Stream, "wait_stream"), (streams.Stream, "record_event"), (streams.Event, "wait"))

        def torches() -> list[Any]:
            methods = [getattr(owner, name) for owner, name in names]
            return methods + [method.__code__ for method in methods]

        before = torches()
        with pytest.raises(ZeroDivisionError), backend.session():
            assert torches() != before
            raise ZeroDivisionError
        assert torches() == before


def _name(stream: Any) -> str:
    return f"stream {getattr(stream, 'cuda_stream', id(stream)):#x}"
