"""Streams and events of one device type as torch gives them to programs: what `StreamWatch` follows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["StreamApi", "cpu_streams", "cuda_streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamApi:
    """One device type's streams, as torch gives them to programs."""

    stream_class: type
    event_class: type
    current: Callable[[], Any]
    is_capturing: Callable[[Any], bool] | None
    """Asks the device; None where there is none and the book-keeping alone decides."""
    current_key: Callable[[], Hashable] | None = None
    """What `key` is of the current stream, without making the object: asked at each op. None: there is no such way."""

    def key(self, stream: Any) -> Hashable:
        """Equal for two objects of one stream."""
        stream_id = getattr(stream, "stream_id", None)
        return id(stream) if stream_id is None else (stream.device_index, stream_id)

    def name(self, stream: Any) -> str:
        """The device's handle, which profilers show too; the object's address where there is no device."""
        handle = getattr(stream, "cuda_stream", None)
        if handle is None and hasattr(stream, "stream_id"):
            return f"stream id {stream.stream_id:#x}"
        return f"stream {id(stream) if handle is None else handle:#x}"


def cuda_streams() -> StreamApi:
    """Those of `torch.cuda`."""
    return StreamApi(
        stream_class=torch.cuda.Stream,
        event_class=torch.cuda.Event,
        current=torch.cuda.current_stream,
        is_capturing=_is_capturing,
        current_key=_accelerator_key if hasattr(torch, "accelerator") else None,
    )


def _accelerator_key() -> Hashable:
    stream = torch.accelerator.current_stream()  # in C++, where torch.cuda.current_stream is a Python object's making
    return (stream.device_index, stream.stream_id)


def cpu_streams() -> StreamApi:
    """Those of `torch.cpu`."""
    return StreamApi(
        stream_class=torch.cpu.Stream, event_class=torch.cpu.Event, current=torch.cpu.current_stream, is_capturing=None
    )


def _is_capturing(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()
