"""Side streams in real captures, past what the conformance suite asks of every backend."""

import pytest
import torch

from ostinato.errors import UnjoinedStreamError
from ostinato.runtime import GraphConfig, Graphed, graph_break

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def segment(backend, fn):
    with backend.phase(), backend.session():
        backend.begin()
        out = fn()
        return backend.end(), out


def is_as_new(backend):
    x = torch.ones(4, device="cuda")
    graph, y = segment(backend, lambda: x + torch.zeros_like(x))
    graph.replay()
    assert y.tolist() == [1.0] * 4
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.rand(4, device="cuda").sum().item() > 0  # the generator is out of the capture
    graph.close()


def name(stream):
    return f"stream {stream.cuda_stream:#x}"


def test_a_refusal_leaves_the_pool_in_use(backend):
    """The fork is joined before the capture is thrown away, so that the device never finds it invalid."""
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    kept, _ = segment(backend, lambda: x * 2)
    pools = len(backend._shared.pools)

    def program():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x + 1

    for _ in range(3):
        with pytest.raises(UnjoinedStreamError, match="not joined") as caught:
            segment(backend, program)
        assert caught.value.__cause__ is None, "ours, not the driver's"
    assert len(backend._shared.pools) == pools
    assert not backend._shared.pools[-1].is_spoiled
    is_as_new(backend)
    kept.close()


def test_streams_of_the_plain_class_are_named_by_their_first_op(backend):
    x, side = torch.ones(4, device="cuda"), torch.Stream(device="cuda")
    ids = {"stream_id": side.stream_id, "device_index": side.device_index, "device_type": side.device_type}

    def program(joins):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(torch.cuda.Stream(**ids)):
            x + 1
        if joins:
            main.wait_stream(side)

    segment(backend, lambda: program(joins=True))[0].close()
    with pytest.raises(UnjoinedStreamError, match="not joined") as caught:
        segment(backend, lambda: program(joins=False))
    assert caught.value.context["streams"] == [name(torch.cuda.Stream(**ids))]
    assert "test_capture_forks_cuda.py" in caught.value.context["at"]
    is_as_new(backend)


def test_a_fork_without_work_is_judged_by_the_device(backend):
    side = torch.cuda.Stream()
    x = torch.ones(4, device="cuda")

    def program():
        y = x + 1
        side.wait_stream(torch.cuda.current_stream())
        return y

    try:
        segment(backend, program)[0].close()
    except UnjoinedStreamError as error:
        assert error.context["streams"] == [name(side)]
        assert error.__cause__ is not None
    is_as_new(backend)


def test_an_external_event_is_a_node_and_no_fork(backend):
    event, side = torch.cuda.Event(external=True), torch.cuda.Stream()
    x = torch.ones(4, device="cuda")

    def program():
        y = x + 1
        event.record()
        return y

    graph, y = segment(backend, program)
    assert "record event" in graph.nodes()
    graph.replay()
    side.wait_event(event)
    with torch.cuda.stream(side):
        z = y + 1
    torch.cuda.synchronize()
    assert z.tolist() == [3.0] * 4
    graph.close()


@pytest.mark.parametrize("made_in_session", [True, False])
def test_an_external_event_of_elsewhere_is_waited_for_at_every_replay(backend, made_in_session):
    early, side = torch.cuda.Event(external=True), torch.cuda.Stream()
    x = torch.ones(4, device="cuda")
    used = []

    def program():
        event = torch.cuda.Event(external=True) if made_in_session else early
        used.append(event)
        with torch.cuda.stream(side):  # torch asks the current stream whether it captures
            event.record()
        torch.cuda.current_stream().wait_event(event)
        return x + 1

    graph, y = segment(backend, program)
    assert "wait event" in graph.nodes()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(4.0)
        used[0].record()
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [5.0] * 4
    graph.close()


@pytest.mark.parametrize("how", ["stream", "event"])
def test_a_wait_for_uncaptured_work_is_refused_before_the_device_does(backend, how):
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    kept, _ = segment(backend, lambda: x * 2)
    pools = len(backend._shared.pools)

    def program():
        x + 1
        if how == "stream":
            torch.cuda.current_stream().wait_stream(side)
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record(side)
            event.wait()

    for _ in range(3):
        with pytest.raises(UnjoinedStreamError, match="across the border") as caught:
            segment(backend, program)
        assert caught.value.__cause__ is None, "ours, not the driver's"
        assert caught.value.context["waits_for"] == name(side)
    assert len(backend._shared.pools) == pools
    assert not backend._shared.pools[-1].is_spoiled
    is_as_new(backend)
    kept.close()


def test_a_fork_by_the_plain_class_may_be_waited_for(backend):
    """`torch.Stream` is written in C and not watched: the device is asked whether it has joined."""
    side = torch.Stream(device="cuda")
    x = torch.ones(4, device="cuda")

    def program():
        y = x + 1
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        main.wait_stream(side)
        return y

    graph, y = segment(backend, program)
    graph.replay()
    assert y.tolist() == [2.0] * 4
    graph.close()


@pytest.mark.parametrize("joins_first", [True, False])
def test_a_break_takes_its_streams_with_it(joins_first):
    """Forked before the break and joined after it: the first segment is refused at its end, by the fork's line."""
    side = torch.cuda.Stream()

    @graph_break
    def look(x):
        return x + 0

    def program(x):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 2
        if joins_first:
            main.wait_stream(side)
        x = look(x)
        if not joins_first:
            main.wait_stream(side)
        return x + y

    config = GraphConfig(mode="piecewise", sizes=(4,))
    with Graphed(program, example=(torch.ones(4, device="cuda"),), config=config) as graphed:
        graphed.warm_up()
        if joins_first:
            assert not graphed.capture().failed
            assert graphed(torch.full((4,), 3.0, device="cuda")).tolist() == [9.0] * 4
        else:
            with pytest.raises(UnjoinedStreamError) as caught:
                graphed.capture()
            assert caught.value.context["streams"] == [name(side)]
            assert "test_capture_forks_cuda.py" in caught.value.context["at"]
