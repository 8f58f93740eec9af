"""What takes a device's memory, from made-up snapshots."""

from __future__ import annotations

from typing import Any

from ostinato.runtime.memory import DeviceView

MIB = 1 << 20


def segment(*blocks: tuple[str, int], pool: tuple[int, int] = (0, 0), is_expandable: bool = False) -> dict[str, Any]:
    return {
        "total_size": sum(size for _, size in blocks),
        "allocated_size": sum(size for state, size in blocks if state == "active_allocated"),
        "segment_pool_id": pool,
        "is_expandable": is_expandable,
        "blocks": [{"state": state, "size": size} for state, size in blocks],
    }


def test_everything_adds_up() -> None:
    view = DeviceView.of(
        [
            segment(("active_allocated", 6 * MIB), ("inactive", 14 * MIB)),
            segment(("inactive", 20 * MIB)),
            segment(("active_allocated", 1 * MIB), ("inactive", 1 * MIB), pool=(0, 7)),
        ],
        total_bytes=100 * MIB,
        free_bytes=30 * MIB,
    )
    parts = (view.free_bytes, view.live_bytes, view.cached_bytes, view.graph_pool_bytes, view.outside_bytes)
    assert [part // MIB for part in parts] == [30, 6, 34, 2, 28]
    assert sum(parts) == view.total_bytes


def test_a_segment_with_a_live_tensor_is_not_given_back() -> None:
    view = DeviceView.of(
        [segment(("active_allocated", MIB), ("inactive", 15 * MIB)), segment(("inactive", 20 * MIB))],
        total_bytes=64 * MIB,
        free_bytes=0,
    )
    assert view.returned_by_empty_cache_bytes == 20 * MIB
    assert view.returned_if_expandable_bytes == 14 * MIB, "whole pages of the gap"


def test_expandable_segments_give_their_pages_back_now() -> None:
    view = DeviceView.of(
        [segment(("active_allocated", MIB), ("inactive", 15 * MIB), is_expandable=True)],
        total_bytes=64 * MIB,
        free_bytes=0,
    )
    assert (view.returned_by_empty_cache_bytes, view.returned_if_expandable_bytes) == (14 * MIB, 0)


def test_a_block_that_a_stream_still_uses_keeps_its_segment() -> None:
    view = DeviceView.of([segment(("active_pending_free", MIB), ("inactive", MIB))], total_bytes=4 * MIB, free_bytes=0)
    assert view.returned_by_empty_cache_bytes == 0 and view.cached_bytes == 2 * MIB


def test_graph_pools_are_kept_whatever_is_in_them() -> None:
    view = DeviceView.of([segment(("inactive", 8 * MIB), pool=(1, 0))], total_bytes=8 * MIB, free_bytes=0)
    assert (view.graph_pool_bytes, view.returned_by_empty_cache_bytes) == (8 * MIB, 0)
