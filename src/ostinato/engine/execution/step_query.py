"""`StepQuery`: a step that somebody asks about, in the words of an engine: decodes, and tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ostinato.engine.config import EngineConfig
from ostinato.errors import ConfigError
from ostinato.runtime import LiveBatch

__all__ = ["StepQuery"]

_CONTEXT_TOKENS: Final = 256


@dataclass(frozen=True, kw_only=True)
class StepQuery:
    """So many requests that decode, beside a chunk of so many prompt tokens.

    Attributes:
        num_decodes: requests in decode.
        num_prefill_tokens: tokens of one prompt, or of as few as the model's length allows.
        context_tokens: of the longest decode; None: 256, or as many as the model's length allows.

    Raises:
        ConfigError: a number is out of range, or there is nothing to run.
    """

    num_decodes: int = 0
    num_prefill_tokens: int = 0
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("num_decodes", 0), ("num_prefill_tokens", 0), ("context_tokens", 1)):
            value = getattr(self, name)
            if value is None and name == "context_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"a step cannot have {name} {value!r}", fix=f"use a whole number from {low} on")
        if not self.num_decodes and not self.num_prefill_tokens:
            raise ConfigError("a step of nothing was asked about", fix="ask about at least one request or token")

    def live(self, config: EngineConfig, kv_tiers: Sequence[int] | None, *, tokens_a_decode: int = 1) -> LiveBatch:
        """The batch as the executor describes it.

        Args:
            config: resolved.
            kv_tiers: of its graphs.
            tokens_a_decode: 1, or 1 + draft length.

        Raises:
            ConfigError: no step of this engine can be so large; the message names the limit.
        """
        assert config.max_num_reqs and config.max_num_batched_tokens and config.max_model_len, "resolved"
        num_prompts = -(-self.num_prefill_tokens // config.max_model_len)
        num_reqs = self.num_decodes + num_prompts
        num_tokens = self.num_decodes * tokens_a_decode + self.num_prefill_tokens
        longest = min(_CONTEXT_TOKENS, config.max_model_len) if self.context_tokens is None else self.context_tokens
        context = max(longest if self.num_decodes else 1, min(self.num_prefill_tokens, config.max_model_len))
        for what, asked, name in (
            ("requests", num_reqs, "max_num_reqs"),
            ("tokens", num_tokens, "max_num_batched_tokens"),
            ("tokens of context", context, "max_model_len"),
        ):
            if asked > getattr(config, name):
                raise ConfigError(
                    f"a step of {asked} {what} is above {name} {getattr(config, name)}",
                    fix=f"ask for less or raise {name}",
                )
        tier = None
        if kv_tiers is not None:
            tier = next((tier for tier in kv_tiers if tier >= context), context)
        return LiveBatch(
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            uniform_query_len=None if num_prompts else tokens_a_decode,
            context_tokens=tier,
        )
