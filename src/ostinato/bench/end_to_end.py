"""Times of whole answers, the same for Ostinato and for every peer: a function that takes prompts and a length.

TPOT is (time of 136 output tokens - time of 8) / 128, with new random prompts at each call, greedy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ostinato.bench.peers.registry import PEERS, PeerSettings, missing, open_peer
from ostinato.bench.run import Run
from ostinato.bench.statistics import tpot_ms
from ostinato.engine.request import SamplingParams

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = [
    "NUM_LONG",
    "NUM_SHORT",
    "EngineSeconds",
    "GenerateSeconds",
    "decode_host_us",
    "measure_peers",
    "measure_tpots",
    "measure_ttfts",
    "steps_between",
]

NUM_SHORT: Final = 8
NUM_LONG: Final = 136
_NUM_UNCOUNTED: Final = 2

GenerateSeconds = Callable[[Sequence[Sequence[int]], int], float]
"""Wall seconds until every prompt has so many output tokens."""


class EngineSeconds:
    """`GenerateSeconds` of an Ostinato engine, which notes what the host worked besides.

    Args:
        llm: idle.
        is_streamed: receive each step's updates, with their text, instead of whole answers at their end.
    """

    def __init__(self, llm: LLM, *, is_streamed: bool = False) -> None:
        self._llm = llm
        self._answer = _streams if is_streamed else _answers
        self.busy_seconds: list[float] = []
        """Of each call: the host's own work, less its waiting for the device."""

    def __call__(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        before = self._llm.stats()["host"]["busy_seconds"]
        began = time.perf_counter()
        counts = self._answer(self._llm, prompts, params)
        elapsed = time.perf_counter() - began
        self.busy_seconds.append(self._llm.stats()["host"]["busy_seconds"] - before)
        for count in counts:
            if count != num_tokens:
                raise RuntimeError(f"a request ended after {count} of {num_tokens} tokens")
        return elapsed


def _answers(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[int]:
    """Tokens of each whole answer."""
    outputs = llm.generate(prompts, params)
    for output in outputs:
        if output.error is not None:
            raise output.error
    return [len(output.token_ids) for output in outputs]


def _streams(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[int]:
    """Tokens of each answer, received update by update."""
    counts = {llm.add_request(prompt, params): 0 for prompt in prompts}
    while llm.has_work():
        for update in llm.step():
            if update.error is not None:
                raise update.error
            counts[update.request_id] += len(update.token_ids)
    return list(counts.values())


def decode_host_us(busy_seconds: Sequence[float]) -> list[float]:
    """Host work of a decode step in microseconds, from the calls of `measure_tpots`: as TPOT, what a longer answer
    takes more than a shorter one, so that prompts are not in it."""
    counted = busy_seconds[_NUM_UNCOUNTED:]
    pairs = zip(counted[::2], counted[1::2], strict=True)
    return [(long - short) / (NUM_LONG - NUM_SHORT) * 1e6 for short, long in pairs]


def measure_tpots(run: Run, seconds: GenerateSeconds, *, batch: int, prompt_tokens: int) -> list[float]:
    """TPOT in milliseconds, once for each repeat, after one call of each length that is not counted."""
    for num_tokens in (NUM_LONG, NUM_SHORT):  # `_NUM_UNCOUNTED`
        seconds(run.prompts(batch, prompt_tokens), num_tokens)
    tpots = []
    for _ in range(run.repeats):
        short = seconds(run.prompts(batch, prompt_tokens), NUM_SHORT)
        long = seconds(run.prompts(batch, prompt_tokens), NUM_LONG)
        tpots.append(tpot_ms(short, long, num_short=NUM_SHORT, num_long=NUM_LONG))
    return tpots


def measure_ttfts(run: Run, seconds: GenerateSeconds, *, num_tokens: int, num_reqs: int = 1) -> list[float]:
    """Milliseconds until the first token of all of ``num_reqs`` prompts, once for each repeat, after two calls."""
    for _ in range(2):
        seconds(run.prompts(num_reqs, num_tokens), 1)
    return [seconds(run.prompts(num_reqs, num_tokens), 1) * 1e3 for _ in range(run.repeats)]


def steps_between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Steps by runtime mode between two of `LLM.stats`."""
    steps = Counter(after["dispatch"]["by_runtime_mode"])
    steps.subtract(before["dispatch"]["by_runtime_mode"])
    return {mode: count for mode, count in steps.items() if count}


def measure_peers(
    run: Run,
    measure: Callable[[str, GenerateSeconds], None],
    *,
    max_model_len: int,
    max_num_reqs: int,
    max_num_batched_tokens: int,
    warm_up_tokens: tuple[int, int],
) -> None:
    """Open each peer that was asked for, let ``measure(name, seconds)`` add its rows, and close it.

    A peer that is not installed is skipped, one that fails is kept under "failed"; the others are measured.
    """
    for name in run.config.peers or ():
        why = missing(name)
        if why is not None:
            run.evidence.skip(name, why)
            continue
        settings = PeerSettings(
            model=run.config.engine.model,
            load_format=run.config.engine.load_format,
            device=str(run.target.device),
            dtype=str(run.target.dtype).removeprefix("torch."),
            max_model_len=max_model_len,
            max_num_reqs=max_num_reqs,
            max_num_batched_tokens=max_num_batched_tokens,
            warm_up_tokens=warm_up_tokens,
        )
        began = time.perf_counter()
        try:
            peer = open_peer(name, settings)
        except Exception as error:  # whatever another project raises
            run.evidence.fail(name, error)
            continue
        run.evidence.config[name] = {
            "package": PEERS[name].package,
            "max_model_len": max_model_len,
            "max_num_reqs": max_num_reqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "start_seconds": round(time.perf_counter() - began, 2),
        }
        try:
            measure(name, peer.generate_seconds)
        finally:
            peer.close()
