"""Memory predicted from sample captures against a whole engine, and a KV cache that comes after its graphs."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from ostinato import LLM, SamplingParams
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import forecast_memory, load_model
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = Path(__file__).parents[2] / "benchmarks" / "models"
MIB = 1 << 20


@pytest.mark.parametrize("name", ["tiny", "llama-3.2-1b"])
def test_predicted_within_a_tenth_or_64_mib(name: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path) if name == "tiny" else SHAPES / name
    config = EngineConfig(model=str(folder), load_format="dummy", max_model_len=1024 if name != "tiny" else 256)
    loaded = load_model(config)
    found = forecast_memory(loaded, is_measured=True)
    del loaded
    gc.collect()
    assert found.measured is not None and found.device is not None
    for owner, predicted in found.predicted.items():
        measured = found.measured[owner]
        assert abs(measured - predicted) <= max(0.1 * predicted, 64 * MIB), (owner, predicted, measured)
        assert measured >= 0
    assert found.measured["executables"] > 0
    assert found.device.outside_bytes >= found.measured["KV cache"], "mapped beside the allocator"


def test_the_cache_takes_what_graphs_have_left() -> None:
    torch.cuda.empty_cache()
    with LLM(str(SHAPES / "llama-3.2-1b"), load_format="dummy", max_model_len=131_072, max_num_reqs=64) as llm:
        executor = llm._require_open()
        free, total = torch.cuda.mem_get_info()
        assert executor._kv.num_pages < executor._kv.max_pages, "more was wanted than there is"
        assert 0.01 * total < free < 0.12 * total, "5 % of what was free is left, and what was rounded"
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        first = llm.generate([[5] * 300, [7] * 3000], params)
        assert [output.token_ids for output in llm.generate([[5] * 300, [7] * 3000], params)] == [
            output.token_ids for output in first
        ]
        assert llm.stats()["dispatch"]["by_runtime_mode"]["FULL"] > 0
