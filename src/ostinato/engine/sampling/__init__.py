"""From logits to tokens, one row per request."""

from __future__ import annotations

from ostinato.engine.request import TokenLogprobs
from ostinato.engine.sampling.greedy import choose_greedy
from ostinato.engine.sampling.sampler import PendingSample, SampleResult, sample, start_sampling

__all__ = ["PendingSample", "SampleResult", "TokenLogprobs", "choose_greedy", "sample", "start_sampling"]
