"""The mode matrix, cell by cell, and a reason for each change."""

import itertools

import pytest

from ostinato.runtime.dispatch import ModeRequest, resolve_mode
from ostinato.runtime.keys import CaptureSupport, Compiler, Mode, Partition

NEVER, SINGLE, UNIFORM, ALWAYS = CaptureSupport
NONE, PIECE, FULL, DECODE, BOTH, AUTO = Mode

WITH_REQUESTS = {
    # asked: (NEVER, SINGLE, UNIFORM, ALWAYS)
    NONE: (NONE, NONE, NONE, NONE),
    PIECE: (PIECE, PIECE, PIECE, PIECE),
    FULL: (PIECE, BOTH, BOTH, FULL),
    DECODE: (PIECE, DECODE, DECODE, DECODE),
    BOTH: (PIECE, BOTH, BOTH, BOTH),
    AUTO: (PIECE, BOTH, BOTH, BOTH),
}
WITHOUT_REQUESTS = {
    NONE: (NONE, NONE, NONE, NONE),
    PIECE: (PIECE, PIECE, PIECE, PIECE),
    FULL: (PIECE, PIECE, PIECE, FULL),
    DECODE: (PIECE, PIECE, PIECE, FULL),
    BOTH: (PIECE, PIECE, PIECE, PIECE),
    AUTO: (PIECE, PIECE, PIECE, FULL),
}
CELLS = [
    (knows, asked, support, row[support])
    for knows, rows in ((True, WITH_REQUESTS), (False, WITHOUT_REQUESTS))
    for asked, row in rows.items()
    for support in CaptureSupport
]


@pytest.mark.parametrize(("knows_requests", "asked", "support", "mode"), CELLS)
def test_modes(knows_requests, asked, support, mode):
    found = resolve_mode(ModeRequest(mode=asked, support=support, knows_requests=knows_requests))
    assert (found.asked, found.mode) == (asked, mode)
    assert (found.reason == "as asked") == (asked is mode)


@pytest.mark.parametrize("asked", [FULL, DECODE, BOTH, AUTO])
def test_drafts_need_more_than_single_token_decode(asked):
    request = {"mode": asked, "knows_requests": True, "uniform_query_len": 3}
    assert resolve_mode(ModeRequest(support=SINGLE, **request)).mode is PIECE
    assert resolve_mode(ModeRequest(support=UNIFORM, **request)).mode in (DECODE, BOTH)


@pytest.mark.parametrize(("partition", "compiler"), list(itertools.product(Partition, Compiler)))
def test_a_device_compiles_as_asked_and_a_cpu_cannot(partition, compiler):
    asked = {"mode": PIECE, "partition": partition, "compiler": compiler}
    cuda = resolve_mode(ModeRequest(device_type="cuda", **asked))
    assert (cuda.partition, cuda.compiler, cuda.reasons) == (partition, compiler, ())
    cpu = resolve_mode(ModeRequest(device_type="cpu", **asked))
    assert cpu.partition is (Partition.FX if partition is Partition.INDUCTOR else partition)
    assert cpu.compiler is Compiler.NONE
    assert len(cpu.reasons) == (partition is Partition.INDUCTOR) + (compiler is Compiler.INDUCTOR)
