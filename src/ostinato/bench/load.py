"""What is sent: random prompts, Poisson arrivals, and the requests of a trace file. No torch.

Traces are CSV files with the columns of the Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024):
TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ostinato.errors import ConfigError

__all__ = ["TimedRequest", "clipped", "poisson_requests", "random_prompts", "read_trace"]

TRACE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOST_TOKENS: Final = 10_000_000  # of a prompt or an answer: as many as the longest contexts there are
_FIRST_TOKEN: Final = 100  # low ids are often special


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRequest:
    """When a request comes, in seconds from the first, and its sizes in tokens."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


def random_prompts(rng: random.Random, *, num_prompts: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """``num_prompts`` prompts of ``num_tokens`` token ids; new ones at each call, so that no cache knows them."""
    first = min(_FIRST_TOKEN, vocab_size - 1)
    return [[rng.randrange(first, vocab_size) for _ in range(num_tokens)] for _ in range(num_prompts)]


def poisson_requests(
    *, rate: float, num_requests: int, prompt_tokens: int, output_tokens: int, seed: int
) -> list[TimedRequest]:
    """Requests of one size whose gaps are exponential with a mean of ``1 / rate`` seconds; the first comes at 0."""
    rng = random.Random(seed)
    found, at_seconds = [], 0.0
    for _ in range(num_requests):
        found.append(TimedRequest(at_seconds=at_seconds, prompt_tokens=prompt_tokens, output_tokens=output_tokens))
        at_seconds += rng.expovariate(rate)
    return found


def read_trace(path: Path, *, speed: float = 1.0, num_requests: int | None = None) -> list[TimedRequest]:
    """The first ``num_requests`` of a trace in order of time, played ``speed`` times as fast.

    Raises:
        ConfigError: the file cannot be read, lacks a column, holds no request, or a line is malformed (it says which).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            names = reader.fieldnames or ()
            doubled = [name for name in TRACE_COLUMNS if names.count(name) > 1]
            if doubled:
                raise ConfigError(
                    f"line 1 of the trace {path.name} names {', '.join(doubled)} twice",
                    fix="leave out one of the two columns",
                    line=1,
                )
            missing = [name for name in TRACE_COLUMNS if name not in names]
            if missing:
                raise ConfigError(
                    f"line 1 of the trace {path.name} lacks the columns {', '.join(missing)}",
                    fix=f"its first line must name {', '.join(TRACE_COLUMNS)}",
                    line=1,
                )
            rows = []
            for row in reader:
                rows.append(_parsed(row, path.name, reader.line_num))
                if num_requests is not None and len(rows) == num_requests:
                    break
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}", fix="name a readable CSV file") from error
    if not rows:
        raise ConfigError(
            f"the trace {path.name} has no requests: it ends after line {reader.reader.line_num}",
            fix="use a file with a line for each request",
            line=reader.reader.line_num,
        )
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return [TimedRequest(at_seconds=(t - first) / speed, prompt_tokens=p, output_tokens=o) for t, p, o in rows]


def _parsed(row: dict[Any, Any], name: str, line: int) -> tuple[float, int, int]:
    def bad(column: str, wanted: str) -> ConfigError:
        return ConfigError(
            f"line {line} of the trace {name} has {row[column]!r} as {column}",
            fix=f"it must be {wanted}",
            line=line,
            column=column,
        )

    if None in row:  # so a number with a comma in it, say, may have moved all behind it
        raise ConfigError(
            f"line {line} of the trace {name} has more fields than line 1",
            fix="put fields that hold commas in quotes",
            line=line,
        )
    absent = [column for column in TRACE_COLUMNS if row[column] is None]
    if absent:
        raise ConfigError(
            f"line {line} of the trace {name} has fewer fields than line 1: it lacks {', '.join(absent)}",
            fix="complete the line, or leave it out",
            line=line,
            column=absent[0],
        )
    text = row["TIMESTAMP"]
    try:
        whole, dot, fraction = text.strip().partition(".")
        if dot and not (fraction.isascii() and fraction.isdigit()):
            raise ValueError(fraction)
        # Traces have seven digits of a second, and datetime reads at most six.
        moment = datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if dot else 0.0)
    except (ValueError, OverflowError):
        raise bad("TIMESTAMP", "a date and time such as 2023-11-16 18:17:03.9799600") from None
    sizes: list[int] = []
    wanted = f"a whole number from 1 to {_MOST_TOKENS:,}"
    for column in TRACE_COLUMNS[1:]:
        try:
            sizes.append(int(row[column]))
        except ValueError:
            raise bad(column, wanted) from None
        if not 1 <= sizes[-1] <= _MOST_TOKENS:
            raise bad(column, wanted)
    return moment, sizes[0], sizes[1]


def clipped(requests: Sequence[TimedRequest], max_model_len: int) -> tuple[list[TimedRequest], int]:
    """The requests that fit a context of ``max_model_len`` tokens, and how many do not."""
    fitting = [r for r in requests if r.prompt_tokens + r.output_tokens <= max_model_len]
    return fitting, len(requests) - len(fitting)
