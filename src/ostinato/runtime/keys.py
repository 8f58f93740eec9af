"""The small frozen value types of the runtime: modes, graph keys, live batches, capture support.

Pure values without torch, shared by every layer above. Policy (which key to take) lives in `dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

__all__ = ["CaptureSupport", "Compiler", "GraphKey", "LiveBatch", "Mode", "Partition", "Phase", "RuntimeMode", "Veto"]


class Mode(StrEnum):
    """The policy a user asks for."""

    NONE = "none"
    """Never use graphs."""
    PIECEWISE = "piecewise"
    """Segments between breaks for every batch."""
    FULL = "full"
    """One graph for every batch, mixed ones too."""
    FULL_DECODE_ONLY = "full_decode_only"
    """One graph for uniform decode; eager otherwise."""
    FULL_AND_PIECEWISE = "full_and_piecewise"
    """One graph for uniform decode; segments between breaks otherwise."""
    AUTO = "auto"
    """The best of these that the attention level and the device allow."""


class Partition(StrEnum):
    """How a piecewise graph is made."""

    BREAKABLE = "breakable"
    """Broken at capture, wherever a break mark is met. Needs no compiler."""
    FX = "fx"
    """The traced graph is split at its breaks, before any compiler."""
    INDUCTOR = "inductor"
    """The traced graph is compiled whole, fused across breaks, and broken where the compiled code breaks."""


class Compiler(StrEnum):
    """What compiles the work inside graphs."""

    NONE = "none"
    INDUCTOR = "inductor"


class Phase(StrEnum):
    """What a step holds, as far as modes tell steps apart."""

    DECODE = "decode"
    """Uniform decode and nothing else."""
    MIXED = "mixed"
    """A prompt, alone or beside decodes."""


class Veto(StrEnum):
    """What one batch forbids for its own step."""

    FULL = "full"
    """Full graphs: attention needs a break this time (cascade attention, special metadata)."""
    GRAPHS = "graphs"
    """All graphs."""


class RuntimeMode(StrEnum):
    """What one step did."""

    FULL = "FULL"
    PIECEWISE = "PIECEWISE"
    EAGER = "EAGER"


class CaptureSupport(IntEnum):
    """Which batches an attention backend can run inside a full graph, weakest first."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBatch:
    """The sizes of one step, before padding.

    ``uniform_query_len`` is set only when *every request is a decode by its state* and all bring the same
    number of tokens; a prompt of that length is a prefill and leaves it None (PITFALLS: vllm#49918).
    ``context_tokens`` is the longest context any request attends to; it picks the KV tier.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform_query_len: int | None = None
    context_tokens: int | None = None
    num_active_loras: int = 0
    variant: str = ""
    veto: Veto | None = None
    veto_reason: str = ""
    """Why, in the words of whoever forbids it; shown by `explain`."""


_SIZE_NAMES: Final = {
    "tokens": "num_tokens",
    "reqs": "num_reqs",
    "query_len": "uniform_query_len",
    "kv_tier": "kv_tier",
    "loras": "num_active_loras",
}
"""In the text of a key -> field."""


@dataclass(frozen=True, slots=True, order=False, kw_only=True)
class GraphKey:
    """What a captured graph is valid for. None means "any".

    Units: tokens, requests, tokens a request, adapters; ``kv_tier`` is the longest context in tokens.
    """

    runtime_mode: RuntimeMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_query_len: int | None = None
    num_active_loras: int = 0
    kv_tier: int | None = None
    variant: str = ""

    @property
    def kind(self) -> str:
        """Keys of one kind hold the same work at other sizes: "piecewise", "full decode" or "full", and the variant."""
        if self.runtime_mode is RuntimeMode.PIECEWISE:
            name = "piecewise"
        else:
            name = "full" if self.uniform_query_len is None else "full decode"
        return f"{name} {self.variant}" if self.variant else name

    @classmethod
    def parse(cls, text: str) -> GraphKey:
        """The key that reads ``text``, as events and files name it.

        Raises:
            ValueError: none does.
        """
        mode, _, rest = text.partition(" ")
        rest, has_variant, variant = rest.partition(" variant=")
        parts = dict(part.split("=", 1) for part in rest.split())
        sizes = {field: int(parts.pop(name)) for name, field in _SIZE_NAMES.items() if name in parts}
        are_counts = all(0 < size < 2**53 for size in sizes.values())
        if parts or not are_counts or "num_tokens" not in sizes or (has_variant and not variant):
            raise ValueError(f"{text!r} is no key")
        return cls(runtime_mode=RuntimeMode(mode), variant=variant, **sizes)  # type: ignore[arg-type]  # no mode among sizes

    def __str__(self) -> str:
        parts = [self.runtime_mode.value, f"tokens={self.num_tokens}"]
        if self.num_reqs is not None:
            parts.append(f"reqs={self.num_reqs}")
        if self.uniform_query_len is not None:
            parts.append(f"query_len={self.uniform_query_len}")
        if self.kv_tier is not None:
            parts.append(f"kv_tier={self.kv_tier}")
        if self.num_active_loras:
            parts.append(f"loras={self.num_active_loras}")
        if self.variant:
            parts.append(f"variant={self.variant}")
        return " ".join(parts)
