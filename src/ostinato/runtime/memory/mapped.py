"""Device memory whose address comes first and whose pages come later, by the CUDA driver's virtual memory calls.

Source: CUDA driver API, "Virtual Memory Management" (cuda.h of CUDA 10.2 and later). Used by `reserved`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ostinato.errors import OutOfMemoryError, RuntimeStateError
from ostinato.runtime.memory.driver import driver

__all__ = ["MappedRange", "can_map"]

_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3  # CU_MEM_ALLOCATION_TYPE_, CU_MEM_LOCATION_TYPE_, CU_MEM_ACCESS_FLAGS_PROT_
_MINIMUM_GRANULARITY = 0
_SUPPORTS_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_U64 = ctypes.c_uint64

logger = logging.getLogger("ostinato")


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    """CUmemAllocationProp.allocFlags."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def can_map(device: torch.device) -> bool:
    """Whether ``device`` has addresses that are backed later, and torch takes them: tried once."""
    return device.type == "cuda" and torch.version.cuda is not None and _maps(_index(device))


@functools.cache
def _maps(index: int) -> bool:
    found = ctypes.c_int(0)
    try:
        status = driver().cuDeviceGetAttribute(ctypes.byref(found), _SUPPORTS_VIRTUAL_MEMORY, index)
        if status != 0 or found.value != 1:
            return False
        device = torch.device("cuda", index)
        tried = MappedRange(2 * granule_bytes(device), device)
        tried.back([0], tried.granule_bytes)
        with torch.inference_mode(False):
            tensor = torch.as_tensor(tried, device=device)
            tensor[: tried.granule_bytes].fill_(1)
            return tensor[:8].tolist() == [1] * 8 and tensor.data_ptr() == tried.address
    except Exception as error:  # an old driver, a partitioned device: nothing is lost but the choice of when
        logger.warning("memory is allocated at once on cuda:%d, since it cannot come later: %s", index, error)
        return False


class MappedRange:
    """A range of device addresses, parts of which are backed by memory.

    Its addresses are given back when the last tensor over it and the range itself are gone.

    Args:
        num_bytes: of address space; rounded up to whole granules.
        device: a CUDA device for which `can_map` holds.

    Raises:
        OutOfMemoryError: so many addresses are not to be had.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._device = device
        self._properties = _Properties(type=_PINNED, location=_Location(_DEVICE, _index(device)))
        torch.cuda.current_stream(device)  # makes sure that there is a context
        self.granule_bytes = granule_bytes(device)
        self.num_bytes = -(-num_bytes // self.granule_bytes) * self.granule_bytes
        address = _U64(0)
        with torch.cuda.device(device):
            _check(
                driver().cuMemAddressReserve(
                    ctypes.byref(address), ctypes.c_size_t(self.num_bytes), ctypes.c_size_t(0), _U64(0), _U64(0)
                ),
                f"{self.num_bytes} bytes of address space",
            )
        self.address = address.value
        self._backed: dict[int, int] = {}  # address -> bytes; shared with the finalizer
        self._finalizer = weakref.finalize(self, _give_back, device, self.address, self.num_bytes, self._backed)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The whole range as bytes; see `torch.as_tensor`. The tensor keeps the range alive."""
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def back(self, offsets: Sequence[int], num_bytes: int) -> None:
        """Put memory behind ``num_bytes`` from each of ``offsets`` on, whole granules all, where there is none yet.

        Raises:
            OutOfMemoryError: the device has not so much left. Then nothing is changed.
        """
        done: list[int] = []
        with torch.cuda.device(self._device):
            try:
                for offset in offsets:
                    self._back_one(self.address + offset, num_bytes)
                    done.append(self.address + offset)
            except BaseException:
                for address in done:
                    driver().cuMemUnmap(_U64(address), ctypes.c_size_t(self._backed.pop(address)))
                raise

    def take_away(self, *, keep: Collection[int]) -> int:
        """Give back all memory but what was put at offsets ``keep``, once the device is done with it; its bytes.

        The addresses stay, and `back` may put other memory behind them.
        """
        kept = {self.address + offset for offset in keep}
        gone = [address for address in self._backed if address not in kept]
        given_back = 0
        with torch.cuda.device(self._device):
            torch.cuda.synchronize(self._device)  # kernels may still run on it
            for address in gone:
                num_bytes = self._backed[address]
                what = f"to take {num_bytes} bytes of device memory back"
                _check(driver().cuMemUnmap(_U64(address), ctypes.c_size_t(num_bytes)), what)
                del self._backed[address]
                given_back += num_bytes
        return given_back

    def _back_one(self, address: int, num_bytes: int) -> None:
        handle = _U64(0)
        place, size = _U64(address), ctypes.c_size_t(num_bytes)
        access = _Access(location=self._properties.location, flags=_READ_WRITE)
        what = f"{num_bytes} bytes of device memory"
        _check(driver().cuMemCreate(ctypes.byref(handle), size, ctypes.byref(self._properties), _U64(0)), what)
        try:
            _check(driver().cuMemMap(place, size, ctypes.c_size_t(0), handle, _U64(0)), what)
        finally:
            driver().cuMemRelease(handle)  # a mapping keeps its memory
        self._backed[address] = num_bytes
        _check(driver().cuMemSetAccess(place, size, ctypes.byref(access), ctypes.c_size_t(1)), what)


def granule_bytes(device: torch.device) -> int:
    """Bytes of the smallest piece of memory that ``device`` maps."""
    properties = _Properties(type=_PINNED, location=_Location(_DEVICE, _index(device)))
    found = ctypes.c_size_t(0)
    call = driver().cuMemGetAllocationGranularity
    _check(call(ctypes.byref(found), ctypes.byref(properties), _MINIMUM_GRANULARITY), "a granule")
    return found.value


def _give_back(device: torch.device, address: int, num_bytes: int, backed: dict[int, int]) -> None:
    with contextlib.suppress(Exception), torch.cuda.device(device):  # at exit there may be no context any more
        torch.cuda.synchronize(device)  # kernels may still run on it
        for place, size in backed.items():
            driver().cuMemUnmap(_U64(place), ctypes.c_size_t(size))
        driver().cuMemAddressFree(_U64(address), ctypes.c_size_t(num_bytes))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _check(status: int, what: str) -> None:
    if status == _OUT_OF_MEMORY:
        raise OutOfMemoryError(f"the device does not have {what}", fix="ask for less, or free memory")
    if status != 0:
        raise RuntimeStateError(f"the driver refuses {what}", fix="allocate plainly on this device", status=status)
