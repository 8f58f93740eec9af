"""From logits to tokens, one row per request."""

from __future__ import annotations

from ostinato.engine.request import TokenLogprobs
from ostinato.engine.sampling.choose import choose_tokens
from ostinato.engine.sampling.greedy import choose_greedy
from ostinato.engine.sampling.host_copy import CopyRing
from ostinato.engine.sampling.mass import mass_bits
from ostinato.engine.sampling.pending_sample import PendingSample, SampleResult
from ostinato.engine.sampling.processors import apply_processors
from ostinato.engine.sampling.settings import NUM_SETTINGS, Setting, SettingsTable
from ostinato.engine.sampling.token_counts import RowToBuild, allocate_counts, build_rows

__all__ = [
    "CopyRing",
    "NUM_SETTINGS",
    "PendingSample",
    "RowToBuild",
    "SampleResult",
    "Setting",
    "SettingsTable",
    "TokenLogprobs",
    "allocate_counts",
    "apply_processors",
    "build_rows",
    "choose_greedy",
    "choose_tokens",
    "mass_bits",
]
