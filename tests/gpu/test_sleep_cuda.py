"""Sleep and reload on a GPU: memory really goes, comes back behind the same addresses, and answers stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.request import SamplingParams
from ostinato.errors import AsleepError, OutOfMemoryError
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 1 << 20
SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 1 << 18,  # 256 MiB
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
PROMPTS: list[Any] = [[5], [7, 8, 9, 250], [3] * 40]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("capture", ["eager", "background"])
def test_memory_goes_and_comes_back_and_answers_stay(tmp_path: Path, capture: str) -> None:
    folder = str(write_tiny_model(tmp_path))
    with LLM(folder, mode="full_and_piecewise", capture=capture, **SETTINGS) as llm:
        llm.capture_pending()
        before, graphs = answers(llm), llm.stats()["graphs"]["count"]
        executor = llm._require_open()
        addresses = [cache.key.data_ptr() for cache in executor.caches]
        awake = free_bytes()
        for cycle in range(2):
            report = llm.sleep()
            assert report.num_graphs == graphs > 0
            assert report.kv_bytes > 200 * MIB, "all but the first granule of each region"
            assert report.device_bytes is not None and report.device_bytes > report.kv_bytes - 16 * MIB
            assert free_bytes() - awake > 200 * MIB
            assert llm.stats()["graphs"]["pool_bytes"] == 0
            with pytest.raises(AsleepError):
                llm.generate([[5]])
            llm.wake()
            assert awake - free_bytes() < 64 * MIB
            if cycle:
                assert free_bytes() - awake < 64 * MIB
            awake = free_bytes()  # the first sleep also gives back what warming up had left in the allocator's cache
            assert [cache.key.data_ptr() for cache in executor.caches] == addresses
            assert llm.stats()["graphs"]["count"] == graphs
            assert answers(llm) == before
        assert llm.qualify().passed


def test_it_sleeps_on_if_somebody_else_has_the_memory(tmp_path: Path) -> None:
    with LLM(str(write_tiny_model(tmp_path)), **SETTINGS) as llm:
        before = answers(llm)
        llm.sleep()
        taken = torch.empty(free_bytes() - 128 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(OutOfMemoryError, match="does not fit any more"):
            llm.wake()
        assert llm.stats()["sleep"]["state"] == "asleep"
        del taken
        torch.cuda.empty_cache()
        llm.wake()
        assert answers(llm) == before


@pytest.mark.parametrize("mode", ["piecewise", "full_and_piecewise"])
def test_reloaded_weights_answer_as_a_fresh_engine(tmp_path: Path, mode: str) -> None:
    old, new = (str(write_tiny_model(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    with LLM(new, mode=mode, **SETTINGS) as fresh:
        expected = answers(fresh)
    with LLM(old, mode=mode, **SETTINGS) as llm:
        before = answers(llm)
        assert before != expected
        assert llm.reload_weights(new).qualified
        assert answers(llm) == expected
        llm.reload_weights()
        assert answers(llm) == before
