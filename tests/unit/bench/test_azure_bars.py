"""What plans waste on the public Azure code trace of 2023 (Patel et al., "Splitwise", ISCA 2024; CC-BY 4.0).

The trace is no part of the repository: these tests look for it beside or in the checkout, and are skipped without it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.bench.load import read_trace
from ostinato.bench.traffic import StepModel, traffic_of
from ostinato.runtime import plan_traffic

_ROOT = Path(__file__).parents[3]
_TRACE = next(
    (path for root in (_ROOT.parent, _ROOT) if (path := root / "shared/data/azure_llm_2023_code.csv").exists()), None
)


@pytest.mark.skipif(_TRACE is None, reason="needs ../shared/data/azure_llm_2023_code.csv")
@pytest.mark.parametrize(("load_factor", "most_decode_percent"), [(1, 0.5), (3, 2.0)])
def test_sixteen_graphs_of_each_kind_waste_little(load_factor: int, most_decode_percent: float) -> None:
    assert _TRACE is not None
    traffic = traffic_of(read_trace(_TRACE, speed=load_factor), StepModel(chunk_tokens=2048, max_num_reqs=256))
    found = plan_traffic(traffic, max_graphs=16)
    assert found["decode"]["graphs"] == found["mixed"]["graphs"] == 16
    assert found["decode"]["pad_percent"] <= most_decode_percent
    assert found["mixed"]["pad_percent"] <= 1.5
    assert found["decode"]["miss_percent"] == found["mixed"]["miss_percent"] == 0
