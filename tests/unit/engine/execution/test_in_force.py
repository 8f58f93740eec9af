"""What an engine says of its settings: as the runtime has resolved them."""

from __future__ import annotations

from ostinato.engine.config import EngineConfig
from ostinato.engine.execution.graph_settings import in_force
from ostinato.runtime import CaptureSupport, Compiler, Mode, ModeRequest, Partition, resolve_mode


def test_what_stays_as_asked_has_no_reason() -> None:
    config = EngineConfig(mode="full", partition="fx", compile="inductor", compile_max_tokens=8)
    mode = resolve_mode(ModeRequest(mode=Mode.FULL, partition=Partition.FX, compiler=Compiler.INDUCTOR))
    assert in_force(config, mode) == (config, {})


def test_each_change_has_its_reason() -> None:
    config = EngineConfig(
        mode="full_and_piecewise",
        partition="inductor",
        compile="inductor",
        compile_max_tokens=8,
        full_mixed_max_tokens=32,
    )
    request = ModeRequest(
        mode=Mode.FULL_AND_PIECEWISE,
        partition=Partition.INDUCTOR,
        compiler=Compiler.INDUCTOR,
        support=CaptureSupport.UNIFORM_BATCH,
        knows_requests=True,
        full_mixed_max_tokens=32,
        device_type="cpu",
    )
    found, reasons = in_force(config, resolve_mode(request))
    assert (found.partition, found.compile, found.compile_max_tokens, found.full_mixed_max_tokens) == (
        "fx",
        "none",
        None,
        0,
    )
    assert type(found.partition) is str
    assert reasons["partition"].startswith("fx: on a CPU") and reasons["compile"].startswith("none: simulated")
    assert reasons["full_mixed_max_tokens"].startswith("0: attention supports UNIFORM_BATCH")
    assert reasons["compile_max_tokens"] == "None: nothing is compiled"


def test_the_mode_stays_as_asked() -> None:
    config = EngineConfig(mode="full")
    request = ModeRequest(mode=Mode.FULL, support=CaptureSupport.UNIFORM_BATCH, knows_requests=True)
    assert in_force(config, resolve_mode(request)) == (config, {})
