"""Addresses first, memory later: the rules that hold on every device, and the driver calls by a stand-in."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from ostinato.errors import ConfigError, OutOfMemoryError, RuntimeStateError
from ostinato.runtime.memory import ReservedRegions, mapped

CPU = torch.device("cpu")


def test_memory_keeps_its_place_and_begins_as_zeros() -> None:
    regions = ReservedRegions(num_regions=3, region_bytes=100, device=CPU)
    address = regions.memory.data_ptr()
    assert (regions.is_lazy, regions.backed_bytes, regions.memory.shape) == (True, 0, (3, 100))
    regions.back(40)
    regions.memory[2, :40] = 7
    regions.back(60)
    assert regions.memory.data_ptr() == address
    assert regions.memory[2, :60].tolist() == [7] * 40 + [0] * 20, "backing more touches nothing that was there"
    regions.back(10)
    assert regions.backed_bytes == 60, "memory is never taken away"


@pytest.mark.parametrize(("num_regions", "region_bytes"), [(0, 1), (1, 0), (-1, 5)])
def test_sizes_must_be_positive(num_regions: int, region_bytes: int) -> None:
    with pytest.raises(ConfigError, match="at least one region"):
        ReservedRegions(num_regions=num_regions, region_bytes=region_bytes, device=CPU)


def test_no_more_is_backed_than_was_reserved() -> None:
    regions = ReservedRegions(num_regions=1, region_bytes=10, device=CPU)
    with pytest.raises(ConfigError, match="reserve more"):
        regions.back(11)
    assert regions.backed_bytes == 0


class Driver:
    """The driver's virtual memory, as bookkeeping: refuses what the driver refuses."""

    GRANULE = 2 << 20

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.reserved: dict[int, int] = {}
        self.handles: dict[int, int] = {}
        self.maps: dict[int, int] = {}
        self.accessible: set[int] = set()

    def cuMemGetAllocationGranularity(self, found: Any, _properties: Any, _option: int) -> int:
        found._obj.value = self.GRANULE
        return 0

    def cuMemAddressReserve(self, address: Any, size: ctypes.c_size_t, *_rest: Any) -> int:
        assert size.value % self.GRANULE == 0
        address._obj.value = 1 << 40
        self.reserved[1 << 40] = size.value
        return 0

    def cuMemCreate(self, handle: Any, size: ctypes.c_size_t, properties: Any, _flags: Any) -> int:
        assert (properties._obj.type, properties._obj.location.type, properties._obj.location.id) == (1, 1, 0)
        if size.value > self.free_bytes:
            return 2
        self.free_bytes -= size.value
        handle._obj.value = len(self.handles) + 1
        self.handles[handle._obj.value] = size.value
        return 0

    def cuMemMap(self, place: Any, size: Any, offset: Any, handle: Any, _flags: Any) -> int:
        assert offset.value == 0 and self.handles[handle.value] == size.value
        for start, length in self.maps.items():
            if start < place.value + size.value and place.value < start + length:
                return 1
        self.maps[place.value] = size.value
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        if self.handles[handle.value] not in self.maps.values():
            self.free_bytes += self.handles[handle.value]
        return 0

    def cuMemSetAccess(self, place: Any, _size: Any, access: Any, count: Any) -> int:
        assert (access._obj.flags, access._obj.location.type, count.value) == (3, 1, 1)
        self.accessible.add(place.value)
        return 0

    def cuMemUnmap(self, place: Any, size: Any) -> int:
        assert self.maps.pop(place.value) == size.value
        self.free_bytes += size.value
        return 0

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert not self.maps and self.reserved.pop(address.value) == size.value
        return 0


class NoDevice:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(free_bytes=20 * Driver.GRANULE)
    monkeypatch.setattr(mapped, "driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: NoDevice())
    return made


def test_a_range_is_backed_where_it_was_asked_for_and_given_back_whole(driver: Driver) -> None:
    device = torch.device("cuda", 0)
    found = mapped.MappedRange(7 * Driver.GRANULE - 5, device)
    base, granule = found.address, Driver.GRANULE
    assert found.num_bytes == 7 * granule
    found.back([0, 4 * granule], granule)
    found.back([granule, 5 * granule], 2 * granule)
    assert driver.maps == {
        base: granule,
        base + 4 * granule: granule,
        base + granule: 2 * granule,
        base + 5 * granule: 2 * granule,
    }
    assert driver.accessible == set(driver.maps)
    assert found.__cuda_array_interface__["data"] == (base, False)
    assert driver.free_bytes == 14 * granule
    del found
    assert not driver.maps and not driver.reserved and driver.free_bytes == 20 * granule


def test_memory_goes_and_comes_back_behind_the_same_addresses(driver: Driver) -> None:
    granule = Driver.GRANULE
    found = mapped.MappedRange(8 * granule, torch.device("cuda", 0))
    found.back([0, 4 * granule], granule)
    kept = dict(driver.maps)
    for _ in range(2):
        found.back([granule, 5 * granule], 2 * granule)
        assert driver.free_bytes == 14 * granule
        assert found.take_away(keep=[0, 4 * granule]) == 4 * granule
        assert driver.maps == kept and driver.free_bytes == 18 * granule
    assert found.take_away(keep=[0, 4 * granule]) == 0


def test_regions_keep_their_beginning(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first granule of each region stays, since graphs are captured over it."""
    granule = Driver.GRANULE
    memory = torch.full((8 * granule,), 9, dtype=torch.uint8)
    monkeypatch.setattr(torch, "as_tensor", lambda *_, **__: memory)
    monkeypatch.setattr(ReservedRegions, "can_be_lazy", staticmethod(lambda _device: True))
    regions = ReservedRegions(num_regions=2, region_bytes=4 * granule, device=torch.device("cuda", 0))
    regions.back(3 * granule)
    regions.memory.fill_(7)
    assert regions.give_back() == 4 * granule and regions.backed_bytes == granule
    assert sorted(driver.maps.values()) == [granule, granule]
    regions.back(3 * granule)
    assert regions.backed_bytes == 3 * granule and sum(driver.maps.values()) == 6 * granule
    assert regions.memory[:, :granule].eq(7).all() and not regions.memory[:, granule : 3 * granule].any()


def test_a_host_keeps_its_memory() -> None:
    regions = ReservedRegions(num_regions=2, region_bytes=100, device=CPU)
    regions.back(40)
    assert regions.give_back() == 0 and regions.backed_bytes == 40


def test_too_little_memory_changes_nothing(driver: Driver) -> None:
    granule = Driver.GRANULE
    found = mapped.MappedRange(30 * granule, torch.device("cuda", 0))
    found.back([0], granule)
    with pytest.raises(OutOfMemoryError, match="does not have"):
        found.back([granule, 12 * granule], 10 * granule)
    assert driver.maps == {found.address: granule} and driver.free_bytes == 19 * granule
    found.back([granule, 12 * granule], 9 * granule)


def test_what_the_driver_refuses_is_told(driver: Driver) -> None:
    found = mapped.MappedRange(4 * Driver.GRANULE, torch.device("cuda", 0))
    found.back([0], Driver.GRANULE)
    with pytest.raises(RuntimeStateError, match="refuses"):
        found.back([0], Driver.GRANULE)


def test_a_device_without_virtual_memory_is_known() -> None:
    assert not mapped.can_map(CPU)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped._maps.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_what_torch_does_not_take_is_not_used(
    driver: Driver, fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def attribute(found: Any, _which: int, _index: int) -> int:
        found._obj.value = 1
        return 0

    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted: no such pointer")

    monkeypatch.setattr(driver, "cuDeviceGetAttribute", attribute, raising=False)
    monkeypatch.setattr(torch, "as_tensor", refuses)
    assert not ReservedRegions.can_be_lazy(torch.device("cuda", 0))
    assert "planted: no such pointer" in caplog.text
    mapped._maps.cache_clear()


def test_a_driver_that_says_no_is_believed(driver: Driver, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", lambda *_: 0, raising=False)
    assert not mapped.can_map(torch.device("cuda", 0))
    mapped._maps.cache_clear()
