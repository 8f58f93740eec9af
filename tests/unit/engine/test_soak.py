"""A soak of the loop with planted faults, see `ostinato.testing.soak`; 20,000 requests with ``-m slow``."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.request import FinishReason
from ostinato.errors import PageIntegrityError
from ostinato.testing.scripted_loop import VOCAB_SIZE, ScriptedLoop
from ostinato.testing.soak import Soak, failing_reads
from ostinato.testing.tiny_models import write_tiny_model

LIMITS = {"num_pages": 41, "max_num_reqs": 8, "max_num_batched_tokens": 48, "max_model_len": 200}


@pytest.fixture(scope="module", autouse=True)
def _quiet_and_one_thread() -> Iterator[None]:
    logger = logging.getLogger("ostinato")
    previous = torch.get_num_threads(), logger.level
    torch.set_num_threads(1)
    logger.setLevel(logging.CRITICAL + 1)  # records of planted failures would be kept, and memory is measured
    yield
    torch.set_num_threads(previous[0])
    logger.setLevel(previous[1])


def scripted_soak(*, overlap: bool, seed: int = 0) -> Soak:
    bench = ScriptedLoop(None, overlap=overlap, **LIMITS)
    bench.executor.scripts = Scripts()
    bench.executor.batches = Forgetful()
    bench.events = Forgetful()
    limits = {name: LIMITS[name] for name in ("max_model_len", "max_num_reqs")}
    return Soak(bench.loop, vocab_size=VOCAB_SIZE, seed=seed, **limits)


class Forgetful(list[Any]):
    """Keeps nothing of what it is given."""

    def append(self, _item: Any) -> None:
        pass


class Scripts(dict[str, Any]):
    """Tokens that depend on the request's name alone; the end token is among them."""

    def __missing__(self, name: str) -> list[int]:
        rng = random.Random(name)
        return [rng.randrange(240, VOCAB_SIZE) for _ in range(32)]


def assert_sound(soak: Soak, num_requests: int) -> None:
    """Every request ended once, every kind of end was met, and memory did not grow."""
    assert soak.num_ended == sum(soak.ends.values()) == num_requests
    assert soak.num_preemptions > 0 and soak.peak_used_pages > 0.9 * soak._allocator.num_usable_pages
    reasons = {end.partition(": ")[2] for end in soak.ends}
    met = {str(r) for r in FinishReason} - {"error"} | {"RequestError", "OutOfMemoryError", "StepFailedError"}
    assert reasons >= met | {"EngineError"}, f"not met: {met - reasons}"
    first, *_, last = soak.rests[1:]  # the first rest is warm-up: caches fill
    assert last.live_requests <= soak._max_num_reqs, "ended requests are kept"
    grown = last.allocated_blocks - first.allocated_blocks
    # Views are cached by batch size, and rare sizes come late; what grows with requests is a leak.
    assert grown < 1000 + 0.02 * num_requests, f"{grown} blocks are kept after {num_requests} requests"


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_a_short_soak(overlap: bool) -> None:
    soak = scripted_soak(overlap=overlap)
    with failing_reads(random.Random(3), 0.004) as num_lost:
        soak.run(1000, num_rests=5)
    assert_sound(soak, 1000)
    assert soak.faulty.num_failed > 0 and num_lost[0] > 0
    for prompt, params, token_ids in soak.undisturbed:
        assert len(prompt) + params.max_tokens >= len(token_ids) > 0


def test_a_soak_notices_a_lost_page(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = scripted_soak(overlap=True)
    free, num_calls, lost = soak._allocator.free, 0, []

    def loses_one(pages: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls >= 50 and pages and not lost:  # by the clock's chance a call may give nothing back
            lost.append(pages[0])
            pages = pages[1:]
        free(pages)

    monkeypatch.setattr(soak._allocator, "free", loses_one)
    with pytest.raises(PageIntegrityError, match="without an owner"):
        soak.run(500, num_rests=1)


def test_a_soak_notices_a_lost_request(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = scripted_soak(overlap=True)
    step, num_calls = soak.loop.step, 0

    def loses_one() -> Any:
        nonlocal num_calls
        num_calls += 1
        updates = step()
        return [u for u in updates if num_calls < 50 or u.finish_reason is None]

    monkeypatch.setattr(soak.loop, "step", loses_one)
    with pytest.raises(AssertionError, match="a request was lost"):
        soak.run(500, num_rests=1)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_a_long_soak(overlap: bool) -> None:
    soak = scripted_soak(overlap=overlap, seed=1)
    with failing_reads(random.Random(4), 0.002):
        soak.run(20_000)
    assert_sound(soak, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_a_soak_of_a_model_on_the_simulated_backend(tmp_path: Path, overlap: bool) -> None:
    settings: dict[str, Any] = {"device": "cpu", "page_size": 4, "kv_tokens": 100, "max_num_batched_tokens": 48}
    limits = {"max_model_len": 120, "max_num_reqs": 8}
    folder = str(write_tiny_model(tmp_path))
    with LLM(folder, mode="full_and_piecewise", overlap=overlap, **settings, **limits) as llm:
        # Decisions are kept by the sizes of a batch, up to a limit of their own; what is left must not grow.
        forget = llm._require_open().graphed._dispatcher._cache.clear
        soak = Soak(llm._loop, vocab_size=llm._vocab_size, seed=2, at_rest=forget, **limits)
        with failing_reads(random.Random(5), 0.004):
            soak.run(1500, num_rests=5)
        assert_sound(soak, 1500)
        assert len(llm._require_open()._writer._entries) <= limits["max_num_reqs"]
        soak.faulty._failing_share = 0.0
        assert len(soak.undisturbed) > 20
        for prompt, params, token_ids in soak.undisturbed:
            assert llm.generate([prompt], params)[0].token_ids == token_ids, "the neighbours changed an answer"
