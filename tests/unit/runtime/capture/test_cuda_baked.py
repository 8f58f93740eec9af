"""Parameter bytes of a kernel as words, without a device: what is an address and what a number."""

from __future__ import annotations

import struct

from ostinato.runtime.capture import cuda_baked

ADDRESS = 0x7F12_3400_0000


def test_addresses_are_blanked_and_numbers_kept(monkeypatch):
    monkeypatch.setattr(cuda_baked, "_is_address", lambda value: value == ADDRESS)
    raw = struct.pack("<QiiQ", ADDRESS, 7, -3, 5)
    assert cuda_baked._words(2, raw) == [
        ("parameter 2, byte 8", 7),
        ("parameter 2, byte 12", -3),
        ("parameter 2, byte 16", 5),
        ("parameter 2, byte 20", 0),
    ]


def test_short_parameters(monkeypatch):
    monkeypatch.setattr(cuda_baked, "_is_address", lambda value: False)
    assert cuda_baked._words(0, struct.pack("<h", -2)) == [("parameter 0, byte 0", -2)]
    assert cuda_baked._words(0, b"") == []
    assert cuda_baked._words(1, struct.pack("<f", 1.0)) == [("parameter 1, byte 0", 0x3F800000)]


def test_small_numbers_are_no_addresses():
    assert not cuda_baked._is_address(0)
    assert not cuda_baked._is_address(4096), "the driver is not even asked"
