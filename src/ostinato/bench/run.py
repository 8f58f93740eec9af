"""`Run`: what every scenario is given: the settings, the model's facts, the device's limits, the evidence to fill."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ostinato.bench.config import BenchConfig
from ostinato.bench.device_limits import measure_limits
from ostinato.bench.engine_probe import lend_tokenizer
from ostinato.bench.evidence import Evidence
from ostinato.bench.floor import DeviceLimits
from ostinato.bench.load import random_prompts
from ostinato.bench.model_costs import Target
from ostinato.engine.text import Tokenizer
from ostinato.engine.weights.progress import ProgressReporter
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato import LLM

__all__ = ["Run"]


@dataclass(kw_only=True)
class Run:
    """One benchmark in progress.

    Attributes:
        tokenizer: lent to every engine; None leaves each with what its model has.
    """

    config: BenchConfig
    target: Target
    evidence: Evidence
    repeats: int
    progress: ProgressReporter | None = None
    tokenizer: Tokenizer | None = None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.config.seed)

    @property
    def is_cuda(self) -> bool:
        """Whether times are a device's own."""
        return self.target.device.type == "cuda"

    @cached_property
    def limits(self) -> DeviceLimits:
        """Measured once, before the first engine takes its memory."""
        limits = measure_limits(self.target.device, self.target.dtype)
        self.evidence.extra["limits"] = {
            "copy_gb_per_s": round(limits.copy_bytes_per_s / 1e9, 1),
            "matmul_tflops": round(limits.matmul_flops_per_s / 1e12, 3),
            "dtype": str(self.target.dtype).removeprefix("torch."),
        }
        return limits

    def prompts(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        """New random prompts."""
        vocab = self.target.vocab_size
        return random_prompts(self.rng, num_prompts=num_prompts, num_tokens=num_tokens, vocab_size=vocab)

    def choose(self, given: tuple[Any, ...] | None, *, cuda: tuple[Any, ...], cpu: tuple[Any, ...]) -> tuple[Any, ...]:
        """What was asked for, or the default of the device kind."""
        return given if given is not None else cuda if self.is_cuda else cpu

    def model_len(self, needed: int, *, what: str) -> int:
        """A context that holds ``needed`` tokens: the one asked for, or ``needed`` rounded up to 1,024.

        Raises:
            ConfigError: the model, or the length asked for, is too short.
        """
        asked, longest = self.config.engine.max_model_len, self.target.max_model_len
        limit = longest if asked is None else asked
        if needed > limit:
            whose = "the model's context" if asked is None else "max_model_len"
            raise ConfigError(
                f"{what} needs {needed} tokens, and {whose} is {limit}",
                fix="measure smaller sizes, or raise max_model_len" if asked else "measure smaller sizes",
            )
        return asked if asked is not None else min(longest, -(-needed // 1024) * 1024)

    def check_limit(self, what: str, sizes: tuple[int, ...], setting: str) -> None:
        """Raise if the largest of ``sizes`` exceeds the engine setting, where the user gave one.

        Raises:
            ConfigError: says which.
        """
        limit = getattr(self.config.engine, setting)
        if limit is not None and max(sizes) > limit:
            raise ConfigError(
                f"{what} {max(sizes)} exceeds {setting}, which is {limit}",
                fix=f"measure smaller sizes, or raise {setting}",
            )

    @contextmanager
    def variant(self, name: str) -> Iterator[None]:
        """Keep an error of the block under ``name`` in the evidence; what comes after is measured all the same."""
        try:
            yield
        except Exception as error:
            self.evidence.fail(name, error)

    @contextmanager
    def engine(self, name: str, **settings: Any) -> Iterator[LLM]:
        """An engine with ``settings`` over those asked for; what they became is kept in the evidence as ``name``."""
        from ostinato import LLM

        base = dataclasses.asdict(self.config.engine)
        given = {key: value for key, value in settings.items() if base.get(key) in (None, "auto") or key in _OURS}
        began = time.perf_counter()
        with LLM(config=dataclasses.replace(self.config.engine, **given), progress=self.progress) as llm:
            if self.tokenizer is not None:
                lend_tokenizer(llm, self.tokenizer)
            stats = llm.stats()
            start_seconds = round(time.perf_counter() - began, 2)
            self.evidence.config.setdefault(
                name, {**stats["config"], "graphs": stats["graphs"], "start_seconds": start_seconds}
            )
            yield llm
        if self.is_cuda:
            torch.cuda.empty_cache()


_OURS = frozenset(
    {
        "mode", "partition", "compile", "guards", "executables", "token_sizes", "decode_sizes", "capture",
        "capture_share",
    }
)  # fmt: skip
"""Settings that a scenario compares; the others are the user's where given."""
