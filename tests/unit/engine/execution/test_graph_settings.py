"""The runtime's settings follow from an engine's."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution.graph_settings import graph_settings


@pytest.mark.parametrize(
    ("device", "settings", "runs"),
    [
        ("cuda", {"partition": "breakable"}, 1),
        ("cuda", {"partition": "breakable", "compile": "inductor"}, 2),
        ("cuda", {"partition": "fx"}, 2),
        ("cuda", {"partition": "inductor"}, 2),
        ("cpu", {"partition": "fx"}, 1),
    ],
)
def test_a_second_warm_up_is_for_compilers(device: str, settings: dict[str, Any], runs: int) -> None:
    asked = EngineConfig(mode="full_and_piecewise", attention="torch", **settings)
    config, _ = resolve_engine_config(asked, device, 2048, "float32")
    assert graph_settings(config, device).warm_up_runs == runs
