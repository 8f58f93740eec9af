"""`GraphConfig`: what a user may set about graphs. Frozen, plain values, no torch.

"auto" values are resolved by pure functions in `dispatch.policy` (mode) and `planning` (sizes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.errors import ConfigError, UnknownNameError
from ostinato.runtime.keys import Compiler, Mode, Partition

__all__ = ["GraphConfig"]


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """Settings of one `Graphed` callable.

    Raises:
        ConfigError: a size is not positive, above ``max_size``, or a limit is out of range.
        UnknownNameError: an unknown mode, partition or output policy; the message lists the valid ones.
    """

    mode: Mode | str = Mode.AUTO
    """Policy. "auto" takes what the capture support allows: full graphs where it can."""
    partition: Partition | str = Partition.BREAKABLE
    """How piecewise graphs are made. "breakable" needs no compiler."""
    compile: Compiler | str = Compiler.NONE
    """"inductor" compiles the work inside full graphs, and with partition "fx" the pieces between breaks."""
    compile_max_tokens: int | None = None
    """Full graphs of more tokens are captured uncompiled: large GEMMs gain little from fusion. None: no limit."""
    sizes: tuple[int, ...] | None = None
    """Token buckets. None takes the default ladder up to ``max_size``."""
    decode_sizes: tuple[int, ...] | None = None
    """Request buckets of uniform decode. None takes the default ladder up to ``max_num_reqs``."""
    max_size: int | None = None
    """Largest token bucket. None: the largest of ``sizes``, or the example's rows."""
    max_captured_size: int | None = None
    """Where the default ladder of token buckets ends; larger steps run eagerly. None: at ``max_size``. A large step
    is bound by its arithmetic: a graph of it saves little time and holds much memory."""
    max_num_reqs: int | None = None
    """Largest number of requests in one step. None: the callable knows no requests."""
    full_mixed_max_tokens: int = 0
    """With full_and_piecewise: mixed batches of up to so many tokens get full graphs too, where attention supports
    them. One launch then, not one a segment, for the price of logits for all request slots. 0: none."""
    full_mixed_num_reqs: int = 16
    """Request slots of those graphs. Steps with more requests run piecewise."""
    uniform_query_lens: tuple[int, ...] = (1,)
    """Tokens a request brings in uniform decode: 1, or 1 + draft length."""
    kv_tiers: tuple[int, ...] | None = None
    """Context lengths in tokens that get graphs of their own. None: one graph for every context."""
    size_multiple: int = 1
    """Token buckets must be multiples of it (tensor-parallel or context-parallel ranks); others are dropped."""
    padding: bool = True
    """False: only batches of exactly a captured size replay."""
    max_padding: float | None = None
    """Refuse a bucket larger than this multiple of the live size (reason PADDING_COST). None: no limit."""
    unbroken_attention: str = "error"
    """An attention op inside a piecewise segment mixes rows, so padding would leak: "error" or "allow"."""
    ownership: str = "owned"
    """Of break arguments: "owned" holds all of them for each key; "recycled" lets later keys have the memory of those
    that a segment of the same plan rewrites at each replay, and holds all others. `Graphed.break_argument_bytes`
    says what either takes. Owned by default: then no argument's address can mean anything else, proven or not."""
    guards: str = "always"
    """Before each replay, look whether what the graph reads still lies where it did: "always" (weights and layouts in
    rotation, the addresses of all else each time), "sampled" (all in rotation), "off" (then nothing keeps that memory
    either)."""
    executables: str = "own"
    """What the device launches graphs by: "own" makes an executable of each; "shared" one for all graphs of the same
    topology at the same place of their plans. That saves their memory, and a replay of another graph than the last one
    waits for an update first. Own by default: a switch costs more than a launch. Graphs that draw random numbers have
    their own in any case."""
    on_moved: str = "raise"
    """What a step does whose guards find that something the graph reads, inputs apart, has moved, was replaced or was
    dropped: "raise" refuses it; "recapture" runs it eagerly, and captures the key anew before the next step that wants
    it. By default an error, since a capture takes as long as many steps. Inputs are always copied in."""
    outputs: str = "copy"
    """"copy" gives the caller tensors of its own; "view" gives the graph's, valid until the next replay; using one
    later raises `StaleOutputError`. It saves a copy of the outputs for the price of a check at each use."""
    shadow_every: int = 0
    """One replayed step in so many runs eagerly too, once its outputs are delivered; a difference quarantines the
    key. Costs copies of inputs, outputs and written state on that step and an eager run, at the latest before the next
    call; an engine chooses when. 0: never."""
    failures_to_quarantine: int = 3
    """Replays of a key that raise in a row before its steps go another way, until `recapture`. A fault of the inputs
    does not count. One failure may be a batch's own, three in a row are likely the graph's. 0: never."""
    warm_up_runs: int = 2
    """Eager runs of each key before capture; the second sees what the first has initialised."""

    @property
    def padding_limit(self) -> float | None:
        """Largest multiple of the live size that a bucket may be; 1 allows exact sizes only, None any."""
        return self.max_padding if self.padding else 1.0

    def __post_init__(self) -> None:
        for field, kind in (("mode", Mode), ("partition", Partition), ("compile", Compiler)):
            value = getattr(self, field)
            valid = [str(m.value) for m in kind]
            if value not in valid:
                raise UnknownNameError.of(field, str(value), valid)
            object.__setattr__(self, field, kind(value))
        for field, choices in (
            ("unbroken_attention", ["error", "allow"]),
            ("outputs", ["copy", "view"]),
            ("ownership", ["recycled", "owned"]),
            ("guards", ["always", "sampled", "off"]),
            ("executables", ["own", "shared"]),
            ("on_moved", ["raise", "recapture"]),
        ):
            if getattr(self, field) not in choices:
                raise UnknownNameError.of(field, str(getattr(self, field)), choices)
        if self.on_moved == "recapture" and self.guards == "off":
            raise ConfigError(
                "on_moved is 'recapture', and guards are off: nobody would see that a tensor moved",
                fix="use guards='always' or 'sampled', or leave out on_moved",
            )
        for field in ("sizes", "decode_sizes", "uniform_query_lens", "kv_tiers"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, _positive(field, value))
        if not _is_int(self.full_mixed_max_tokens, low=0):
            raise ConfigError(
                f"full_mixed_max_tokens is {self.full_mixed_max_tokens!r}", fix="use a number of tokens, or 0 for none"
            )
        if not _is_int(self.failures_to_quarantine, low=0):
            raise ConfigError(
                f"failures_to_quarantine is {self.failures_to_quarantine!r}",
                fix="use a number of failures in a row, or 0 for never",
            )
        if not _is_int(self.shadow_every, low=0):
            raise ConfigError(f"shadow_every is {self.shadow_every!r}", fix="use a number of steps, or 0 for never")
        if not isinstance(self.padding, bool):
            raise ConfigError(f"padding is {self.padding!r}", fix="use True or False")
        for field in (
            "max_size",
            "max_num_reqs",
            "compile_max_tokens",
            "size_multiple",
            "full_mixed_num_reqs",
            "max_captured_size",
        ):
            value = getattr(self, field)
            if value is not None:
                _positive(field, (value,))
        if self.sizes and self.max_size is not None and self.sizes[-1] > self.max_size:
            raise ConfigError(
                f"size {self.sizes[-1]} is above max_size {self.max_size}", fix="drop it from sizes or raise max_size"
            )
        if self.decode_sizes and self.max_num_reqs is not None and self.decode_sizes[-1] > self.max_num_reqs:
            raise ConfigError(
                f"decode size {self.decode_sizes[-1]} is above max_num_reqs {self.max_num_reqs}",
                fix="drop it from decode_sizes or raise max_num_reqs",
            )
        is_number = isinstance(self.max_padding, int | float) and not isinstance(self.max_padding, bool)
        if self.max_padding is not None and not (is_number and self.max_padding >= 1):
            raise ConfigError(f"max_padding is {self.max_padding!r}", fix="use 1.0 (exact sizes only) or more")
        if not _is_int(self.warm_up_runs, low=1):
            raise ConfigError(f"warm_up_runs is {self.warm_up_runs!r}", fix="use 1 or more: capture needs warm code")


def _positive(field: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """``values`` sorted without duplicates; ConfigError where one is not a positive int."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        example = f"({values!r},)" if _is_int(values, low=1) else "(1, 2, 4)"
        raise ConfigError(f"{field} must be several sizes", fix=f"write {field}={example}", got=values)
    values = tuple(values)
    bad = [v for v in values if not _is_int(v, low=1)]
    if bad or not values:
        raise ConfigError(f"{field} must be positive integers", fix=f"remove {bad or 'the empty list'}", got=values)
    return tuple(sorted(set(values)))


def _is_int(value: object, *, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low
