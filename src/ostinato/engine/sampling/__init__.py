"""From logits to tokens, one row per request."""

from __future__ import annotations

from ostinato.engine.request import TokenLogprobs
from ostinato.engine.sampling.sampler import SampleResult, sample

__all__ = ["SampleResult", "TokenLogprobs", "sample"]
