"""`BenchConfig`: what a benchmark should measure, checked before anything is loaded. Plain values; no torch.

Every field but ``engine`` may be left None: the scenario then has a default, which may depend on the device.
What the engine may be is the business of `EngineConfig`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ostinato.engine.config import EngineConfig
from ostinato.errors import ConfigError, UnknownNameError

__all__ = ["MODES", "VARIANTS", "BenchConfig", "parse_numbers"]

MODES: Final = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto")
VARIANTS: Final = ("eager", "breakable", "fx", "fx+inductor", "inductor", "full")
"""Ways to run one step that `surface` compares: no graph, the piecewise partitions, one graph."""

_COUNTS: Final = ("prompt_tokens", "repeats", "num_requests", "output_tokens")
_LISTS: Final = ("batches", "tokens", "requests", "segments")
_POSITIVE: Final = ("trace_speed", "ttft_goal_ms", "tpot_goal_ms")
_MOST: Final = 1 << 20  # no engine has more tokens or requests in a step; catches a slipped digit early


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """One benchmark.

    Attributes:
        engine: model, device and limits of every engine that is measured; its ``mode`` is replaced by ``modes``.
        modes: graph modes to compare.
        variants: ways to make graphs to compare, among `VARIANTS`.
        batches: requests that decode at once.
        tokens: prompt lengths, or tokens of a step.
        requests: requests that share a step.
        segments: segments of the made-up chains.
        prompt_tokens: random tokens in a prompt; 128 is what published tables use.
        output_tokens: tokens that a request of `serve` asks for.
        repeats: measurements of each row; the row holds their median and spread.
        rates: requests a second.
        num_requests: how many requests are sent.
        trace: CSV file with the columns TIMESTAMP, ContextTokens, GeneratedTokens to replay.
        trace_speed: 2 replays the trace in half its time.
        ttft_goal_ms, tpot_goal_ms: a request within both counts as good.
        is_cold: start with empty compiler caches.
        is_profiled: False leaves out the profiler's pass (busy time, kernels), which opens each engine again.
        peers: other systems to measure in the same run.
        seed: of prompts and arrivals.

    Raises:
        ConfigError, UnknownNameError: a number is out of range or a name unknown; says which and what is valid.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    modes: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    batches: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    requests: tuple[int, ...] | None = None
    segments: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    repeats: int | None = None
    rates: tuple[float, ...] | None = None
    num_requests: int | None = None
    trace: Path | None = None
    trace_speed: float | None = None
    ttft_goal_ms: float | None = None
    tpot_goal_ms: float | None = None
    is_cold: bool | None = None
    is_profiled: bool | None = None
    peers: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if (value := getattr(self, name)) is not None:
                _check_count(name, value)
        for name in _LISTS:
            values = getattr(self, name)
            if values is not None:
                _check_not_empty(name, values)
                for value in values:
                    _check_count(name, value)
        for name in _POSITIVE:
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
        if self.rates is not None:
            _check_not_empty("rates", self.rates)
            for rate in self.rates:
                _check_positive("rates", rate)
        for kind, given, valid in (("mode", self.modes, MODES), ("variant", self.variants, VARIANTS)):
            if given is not None:
                _check_not_empty(kind + "s", given)
            for name in given or ():
                if name not in valid:
                    raise UnknownNameError.of(kind, name, list(valid))
        for name in ("rates", "prompt_tokens", "output_tokens"):
            if self.trace is not None and getattr(self, name) is not None:
                raise ConfigError(f"a trace has {name} of its own", fix=f"give either {name} or a trace", field=name)
        if self.trace is None and self.trace_speed is not None:
            raise ConfigError("trace_speed goes with a trace", fix="give a trace too, or leave out trace_speed")

    def given(self) -> dict[str, Any]:
        """The fields that were set, engine and seed aside."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: v for k, v in fields.items() if k not in ("engine", "seed") and v is not None}


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """``"1,8,29"`` as numbers.

    Raises:
        ConfigError: something between the commas is no integer.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        fix = "write integers with commas between: 1,8,29"
        raise ConfigError(f"{name} is {text!r}", fix=fix, field=name) from error


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        message, fix = f"{name} must be an integer from 1 to {_MOST}, got {value!r}", f"set {name} accordingly"
        raise ConfigError(message, fix=fix, field=name, got=repr(value))


def _check_positive(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        message, fix = f"{name} must be a positive number, got {value!r}", f"set {name} accordingly"
        raise ConfigError(message, fix=fix, field=name, got=repr(value))


def _check_not_empty(name: str, values: tuple[Any, ...]) -> None:
    if not values:
        raise ConfigError(f"{name} is empty", fix="name at least one, or leave it out for the default", field=name)
