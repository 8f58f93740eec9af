"""What the watch of streams does where a device has the last word: streams and events that tell what a GPU would."""

import dataclasses
import threading
from types import SimpleNamespace

import pytest
import torch

from ostinato.errors import HostSyncError, UnjoinedStreamError
from ostinato.runtime.capture.stream_api import StreamApi
from ostinato.runtime.capture.streams import StreamWatch, unjoined

ADD = torch.ops.aten.add.Tensor


class Device:
    """Who captures, by stream; what a wait for an event of elsewhere raises."""

    def __init__(self):
        self.capturing = set()
        self.current = None


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def api(device):
    class Stream:
        serial = 0

        def __init__(self):
            Stream.serial += 1
            self.stream_id, self.device_index, self.cuda_stream = Stream.serial, 0, 0x10 * Stream.serial

        def wait_stream(self, stream):
            self.wait_event(stream.record_event())

        def wait_event(self, event):
            event.wait(self)

        def record_event(self, event=None):
            event = event or Event()
            event.record(self)
            return event

        def query(self):
            return True

    class Event:
        def __new__(cls, external=False):
            event = super().__new__(cls)
            event.external, event.is_captured = external, None
            return event

        def record(self, stream=None):
            self.is_captured = (stream or device.current).stream_id in device.capturing

        def wait(self, stream=None):
            stream = stream or device.current
            if self.external or self.is_captured is None:
                return
            if self.is_captured:
                device.capturing.add(stream.stream_id)
            elif stream.stream_id in device.capturing:
                raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")

        def synchronize(self):
            pass

    return StreamApi(
        stream_class=Stream,
        event_class=Event,
        current=lambda: device.current,
        is_capturing=lambda stream: stream.stream_id in device.capturing,
    )


@pytest.fixture
def segment(api, device):
    """An open segment: its watch, and its own stream."""
    watch = StreamWatch(api)
    main = device.current = api.stream_class()
    device.capturing.add(main.stream_id)
    with watch.session():
        watch.begin()
        yield SimpleNamespace(watch=watch, main=main, stream=api.stream_class, event=api.event_class)


def run(segment, device, stream):
    device.current = stream
    segment.watch.note_op(ADD, has_fresh_result=True)
    device.current = segment.main


@pytest.mark.parametrize(("offset", "asks"), [(0, 0), (7, 2)], ids=["agrees", "means something else"])
def test_the_quick_key_is_used_where_it_agrees_with_the_object(api, device, offset, asks):
    asked = []

    def current():
        asked.append(device.current)
        return device.current

    def quick():
        return (device.current.device_index, device.current.stream_id + offset)

    watch = StreamWatch(dataclasses.replace(api, current=current, current_key=quick))
    main = device.current = api.stream_class()
    device.capturing.add(main.stream_id)
    with watch.session():
        watch.begin()
        side = api.stream_class()
        side.wait_stream(main)
        device.current = side
        asked.clear()
        for _ in range(2):
            watch.note_op(ADD, has_fresh_result=True)
        assert len(asked) == asks
        device.current = main
        assert len(watch.check_end().context["streams"]) == 1


def test_names_are_the_handles(segment, device):
    side = segment.stream()
    side.wait_stream(segment.main)
    run(segment, device, side)
    error = segment.watch.check_end()
    assert error.context["streams"] == [f"stream {side.cuda_stream:#x}"]
    assert "test_streams.py" in error.context["at"]


def test_arguments_have_the_names_that_torch_gives_them(segment, device):
    side, event = segment.stream(), segment.event()
    side.wait_stream(stream=segment.main)
    run(segment, device, side)
    event.record(stream=side)
    segment.main.wait_event(event=event)
    assert [fork.stream for fork in segment.watch.forks()] == [side]
    assert segment.watch.check_end() is None


def test_external_events_fork_nothing(segment, device):
    event, side = segment.event(external=True), segment.stream()
    event.record(segment.main)
    event.wait(side)
    assert segment.watch.forks() == []


def test_a_host_that_asks_for_the_captures_own_work_is_refused(segment):
    side, event = segment.stream(), segment.event()
    side.wait_stream(segment.main)
    event.record(side)
    for ask, name in ((side.query, r"Stream\.query"), (event.synchronize, r"Event\.synchronize")):
        with pytest.raises(HostSyncError, match=name) as caught:
            ask()
        assert "test_streams.py" in caught.value.context["at"]


def test_a_host_may_ask_for_other_work_as_far_as_the_device_lets_it(segment):
    external, other, never = segment.event(external=True), segment.event(), segment.event()
    external.record(segment.main)
    other.record(segment.stream())
    assert segment.stream().query()
    for event in (external, other, never):
        event.synchronize()
    of_the_segment = segment.event()
    of_the_segment.record(segment.main)
    segment.watch.close()
    of_the_segment.synchronize()


@pytest.fixture
def waits(api, device):
    """A capture that waits for an event which was recorded beside it; made before the session, or in it."""

    def waits(*, made_before, external=False):
        watch = StreamWatch(api)
        main = device.current = api.stream_class()
        device.capturing.add(main.stream_id)
        side = api.stream_class()
        before = api.event_class(external=external)
        with watch.session():
            watch.begin()
            event = before if made_before else api.event_class(external=external)
            event.record(side)
            main.wait_event(event)
        return side

    return waits


def test_the_device_judges_events_that_may_be_external(waits):
    with pytest.raises(UnjoinedStreamError, match="across the border") as caught:
        waits(made_before=True)
    assert "uncaptured work" in str(caught.value.__cause__)
    waits(made_before=True, external=True)
    waits(made_before=False, external=True)


def test_a_plain_event_is_refused_before_the_device_would(waits, api):
    with pytest.raises(UnjoinedStreamError, match="across the border") as caught:
        waits(made_before=False)
    assert caught.value.__cause__ is None
    assert caught.value.context["waits_for"] == f"stream {0x10 * api.stream_class.serial:#x}"


def test_a_stream_that_has_joined_unseen_is_asked_for_at_the_device(segment, device):
    side = segment.stream()
    device.capturing.add(side.stream_id)  # by C++
    segment.main.wait_stream(side)
    assert [fork.stream for fork in segment.watch.forks()] == [side]
    assert segment.watch.check_end() is None


def test_other_errors_of_a_wait_stay_what_they_are(segment, monkeypatch):
    side = segment.stream()
    event = segment.main.record_event()
    event.is_captured = False  # the device has its own reason
    side.wait_event(event)
    monkeypatch.setattr(segment.event, "wait", lambda *_: (_ for _ in ()).throw(RuntimeError("lost")))
    with pytest.raises(RuntimeError, match="lost"):
        side.wait_event(event)


def test_a_stream_that_is_none_is_no_fork(api, device):
    asked = []
    api = dataclasses.replace(api, is_capturing=lambda stream: asked.append(stream) or True)  # as torch takes None
    watch, device.current = StreamWatch(api), api.stream_class()
    with watch.session():
        watch.begin()
        with pytest.raises(AttributeError, match="record_event"):
            api.stream_class().wait_stream(None)
        assert watch.forks() == [] and asked == []


def test_a_fork_that_nobody_saw_is_left_to_the_device_and_named_after_its_first_op(segment, device):
    side = segment.stream()
    device.capturing.add(side.stream_id)  # by C++
    run(segment, device, side)
    assert segment.watch.check_end() is None
    (fork,) = segment.watch.suspects()
    assert fork.name == f"stream {side.cuda_stream:#x}"
    assert "test_streams.py" in fork.at
    assert fork.name in unjoined(segment.watch.suspects()).message


def test_a_join_that_nobody_saw_is_left_to_the_device(segment, device):
    side, event = segment.stream(), segment.event()
    side.wait_stream(segment.main)
    run(segment, device, side)
    event.is_captured = True  # recorded on the side stream by C++
    segment.main.wait_event(event)
    assert segment.watch.check_end() is None


def test_a_fork_by_an_event_that_nobody_saw_is_named_after_its_wait(segment, device):
    side, event, waits_in_vain = segment.stream(), segment.event(), segment.stream()
    event.is_captured = True  # recorded by C++
    side.wait_event(event)
    waits_in_vain.wait_event(segment.event())  # never recorded
    assert [fork.name for fork in segment.watch.forks()] == [f"stream {side.cuda_stream:#x}"]
    run(segment, device, side)
    assert segment.watch.check_end() is None


def test_another_thread_is_not_watched(segment, device):
    side = segment.stream()
    thread = threading.Thread(target=lambda: side.wait_stream(segment.main))
    thread.start()
    thread.join()
    assert segment.watch.forks() == []


def test_a_device_that_names_no_stream_still_gets_the_fix():
    error = unjoined([])
    assert "not joined" in error.message and "wait_stream" in error.fix
