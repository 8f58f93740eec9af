"""Request and sampling value types: what was asked, what has come out, and how far the KV cache is filled.

Plain Python, no torch. `SamplingParams` checks itself and never changes; `Request` is the one mutable
record that scheduler, execution and loop share. Whose turn it is belongs to the scheduler, and text and
stop strings to `engine.text`. Used by every engine layer above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, overload

from ostinato.errors import OstinatoError, RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MAX_LOGPROBS",
    "DecodeBooks",
    "FinishReason",
    "LogitsProcessor",
    "Request",
    "SamplingParams",
    "TokenLogprobs",
    "deadline_in",
    "natural_finish",
    "validate_prompt",
]

MAX_LOGPROBS: Final = 20  # the OpenAI API's limit; each one is copied to the host at every step

LogitsProcessor = Callable[[list[int], Any], Any]
"""(token ids of prompt and output, logits [vocab] float32) -> logits [vocab]; it may write to what it is given."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    TIMEOUT = "timeout"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Attributes:
        max_tokens: most tokens to generate, >= 1.
        temperature: 0 is greedy, the default, so that a first run repeats exactly.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p (Holtzman et al., 2019); 1 keeps all.
        min_p: keep tokens at least this share of the most likely one; 0 keeps all.
        seed: makes the tokens repeat, whoever shares the batch; None draws from the engine's stream.
        repetition_penalty: divides (or multiplies) the logits of tokens in prompt or output (Keskar et al., 2019).
        presence_penalty: taken once from the logits of tokens in the output.
        frequency_penalty: taken once per occurrence in the output.
        stop: strings that end the request; they are not part of the text. One plain string is accepted.
        stop_token_ids: tokens that end the request.
        logprobs: None for none, n >= 0 for the chosen token and the n most likely.
        ignore_eos: go on past the model's end-of-sequence token.

    Raises:
        RequestError: names the field, the range and the value.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, "an integer >= 1", low=1)
        _check_float("temperature", self.temperature, "a finite number >= 0", low=0.0)
        _check_int("top_k", self.top_k, "an integer >= 0 (0 keeps all)", low=0)
        _check_float("top_p", self.top_p, "in (0, 1]", low=0.0, high=1.0, is_low_open=True)
        _check_float("min_p", self.min_p, "in [0, 1]", low=0.0, high=1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, "None or a signed 64-bit integer", low=-(2**63), high=2**63 - 1)
        _check_float("repetition_penalty", self.repetition_penalty, "finite and > 0", low=0.0, is_low_open=True)
        _check_float("presence_penalty", self.presence_penalty, "in [-2, 2]", low=-2.0, high=2.0)
        _check_float("frequency_penalty", self.frequency_penalty, "in [-2, 2]", low=-2.0, high=2.0)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, f"None or in 0..{MAX_LOGPROBS}", low=0, high=MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise _bad("ignore_eos", "true or false", self.ignore_eos)
        stops: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stops, tuple | list) or not all(isinstance(s, str) and s for s in stops):
            raise _bad("stop", "non-empty strings", self.stop)
        if not isinstance(self.stop_token_ids, tuple | list):
            raise _bad("stop_token_ids", "a tuple of token ids >= 0", self.stop_token_ids)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, "token ids >= 0", low=0)
        object.__setattr__(self, "stop", tuple(stops))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0

    @cached_property
    def takes_likeliest(self) -> bool:
        """True when the largest logit is the answer: greedy, no penalties."""
        return self.is_greedy and not self.has_penalties

    @cached_property
    def is_plain(self) -> bool:
        """True when the largest logit is the answer and nothing more is asked: no log-probabilities either."""
        return self.takes_likeliest and self.logprobs is None

    @property
    def has_penalties(self) -> bool:
        """True when logits are changed by the tokens seen so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one output position, from the model's own logits (before any sampling setting).

    Attributes:
        token_id: the token that was chosen.
        logprob: its natural-log probability.
        rank: 1 for the most likely token of the vocabulary; ties share a rank.
        top: (token id, logprob) of the most likely tokens, most likely first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


_T = TypeVar("_T")


class DecodeBooks(Protocol):
    """What a request needs of the scheduler's table of decodes, which is ahead of the record that it keeps itself."""

    def bring_up_to_date(self, request: Request) -> None:
        """Write what happened since into the request, and set `Request.books` to None until more happens."""
        ...


class _Progress(Generic[_T]):
    """A field of `Request` whose newest value may stand in its `DecodeBooks`: whoever reads it gets that."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, request: None, owner: type) -> None: ...
    @overload
    def __get__(self, request: Request, owner: type) -> _T: ...
    def __get__(self, request: Request | None, owner: type) -> _T | None:
        if request is None:  # asked by `dataclass` for the default
            return None
        if request.books is not None:
            request.books.bring_up_to_date(request)
        value: _T = request.__dict__[self._name]
        return value

    def __set__(self, request: Request, value: _T | None) -> None:
        if request.books is not None:
            request.books.bring_up_to_date(request)
        request.__dict__[self._name] = self._make() if value is None else value


@dataclass(eq=False, kw_only=True)
class Request:
    """One generation in progress. Compared by identity; changed by scheduler and loop alone.

    While it decodes, the scheduler counts its tokens in arrays, for all requests at once; what is read here is brought
    up to date first.

    Attributes:
        request_id: unique among the requests of one engine.
        prompt_token_ids: the prompt, checked by `validate_prompt`; never changed.
        checked_ids: what `validate_prompt` gave for it, where that was called.
        params: how to sample and when to stop.
        output_token_ids: tokens sampled and read so far; preemption keeps them.
        num_pending_tokens: tokens sampled that still lie on the device: 1 while the step after theirs is prepared.
        num_computed_tokens: leading tokens of prompt + output whose K/V lie in `pages`.
        pages: page numbers in order; token i lies in ``pages[i // page_size]``.
        finish_reason: None while in progress.
        num_preemptions: times its pages were taken back for older requests.
        logprobs: one per output token when asked for.
        error: what went wrong when `finish_reason` is ERROR.
        deadline: when it ends with TIMEOUT at the latest, in seconds of `time.monotonic`; None for never.
        logits_processors: change its logits before anything else does, in order. One that raises ends the request. A
            step is launched only when the tokens before are read while such a request is in progress.
        is_streamed: an update is wanted for each step; if not, one at the end brings everything.
        prompt_ids: [num_prompt_tokens] the prompt once more, for the steps that compute it. Nobody writes to it.
        max_num_tokens: prompt and output together that `params` allow; the request ends when it has as many.
        is_plain: the largest logit is the answer and nothing more is asked.
        is_watched: the host has something to do for each of its tokens, not only for its last.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    output_token_ids: _Progress[list[int]] = _Progress(list)
    num_pending_tokens: _Progress[int] = _Progress(int)
    num_computed_tokens: _Progress[int] = _Progress(int)
    pages: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: OstinatoError | None = None
    deadline: float | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    is_streamed: bool = True
    checked_ids: InitVar[NDArray[np.int64] | None] = None
    prompt_ids: NDArray[np.int64] = field(init=False, repr=False)
    max_num_tokens: int = field(init=False)
    is_plain: bool = field(init=False)
    is_watched: bool = field(init=False)
    books: DecodeBooks | None = field(default=None, init=False, repr=False)
    """Where more is known of it than here; set by the scheduler's table alone."""

    def __post_init__(self, checked_ids: NDArray[np.int64] | None) -> None:
        self.prompt_ids = _as_array(self.prompt_token_ids) if checked_ids is None else checked_ids
        self.max_num_tokens = len(self.prompt_token_ids) + self.params.max_tokens
        params = self.params
        self.is_plain = params.is_plain and not self.logits_processors
        self.is_watched = (
            self.is_streamed or bool(params.stop) or bool(params.stop_token_ids) or params.logprobs is not None
        )

    def note_progress(self, new_token_ids: Sequence[int], *, num_computed_tokens: int, num_pending_tokens: int) -> None:
        """Write what `books` knows: for them alone."""
        state = self.__dict__  # past the descriptors, which would ask the books
        state["_output_token_ids"] += new_token_ids
        state["_num_computed_tokens"] = num_computed_tokens
        state["_num_pending_tokens"] = num_pending_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far, read or not."""
        return len(self.output_token_ids) + self.num_pending_tokens

    @property
    def num_tokens(self) -> int:
        """Prompt and output together, pending tokens too."""
        return len(self.prompt_token_ids) + len(self.output_token_ids) + self.num_pending_tokens

    @property
    def all_token_ids(self) -> list[int]:
        """A new list of the tokens that are known: prompt, then output."""
        return self.prompt_token_ids + self.output_token_ids

    def token_slice(self, start: int, num_tokens: int) -> list[int]:
        """Tokens ``[start, start + num_tokens)`` of prompt + output, without copying the rest; pending ones lack."""
        end, num_prompt = start + num_tokens, len(self.prompt_token_ids)
        tail = self.output_token_ids[max(0, start - num_prompt) : max(0, end - num_prompt)]
        return self.prompt_token_ids[start:end] + tail

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_decode(self) -> bool:
        """True when only the newest output token is left to compute.

        Judged from state, not from shape: a one-token prompt without output is a prefill.
        """
        return self.num_output_tokens > 0 and self.num_computed_tokens == self.num_tokens - 1


def deadline_in(timeout_s: float) -> float:
    """`Request.deadline` for a request that may take ``timeout_s`` seconds from now.

    Raises:
        RequestError: not a finite number above 0.
    """
    _check_float("timeout_s", timeout_s, "a finite number of seconds > 0", low=0.0, is_low_open=True)
    return time.monotonic() + timeout_s


def natural_finish(request: Request, *, eos_token_ids: Collection[int], max_model_len: int) -> FinishReason | None:
    """The reason for which the newest output token ends the request, or None. Stop strings are not looked at.

    A stop token wins over a limit reached at the same token. Pending tokens are not counted: they are yet to come.
    """
    if not request.output_token_ids:
        return None
    newest, params = request.output_token_ids[-1], request.params
    if newest in params.stop_token_ids or (newest in eos_token_ids and not params.ignore_eos):
        return FinishReason.STOP
    num_output = len(request.output_token_ids)
    if num_output >= params.max_tokens or request.num_prompt_tokens + num_output >= max_model_len:
        return FinishReason.LENGTH
    return None


def validate_prompt(token_ids: Sequence[int], *, vocab_size: int, max_model_len: int) -> NDArray[np.int64]:
    """Refuse a prompt that no step could compute.

    Args:
        token_ids: the prompt.
        vocab_size: rows of the embedding; ids lie in ``[0, vocab_size)``.
        max_model_len: tokens a request may hold; one is kept for the output.

    Returns:
        [num] the ids as an array.

    Raises:
        RequestError: empty, too long, or an id out of range (its position and value are named).
    """
    if len(token_ids) == 0:
        raise RequestError("the prompt has no tokens", fix="send at least one token")
    if len(token_ids) >= max_model_len:
        expected = f"at most {max_model_len - 1} tokens (max_model_len {max_model_len} less one for the output)"
        message = f"the prompt is too long: {len(token_ids)} tokens"
        raise RequestError(message, fix="shorten the prompt", expected=expected, got=len(token_ids))
    if list(map(type, token_ids)).count(int) == len(token_ids):  # an array would take True, and numbers of numpy
        with suppress(OverflowError):
            ids = _as_array(token_ids)
            if ids.min() >= 0 and ids.max() < vocab_size:
                return ids
    for position, token_id in enumerate(token_ids):  # one by one: to name the first, or as some are an enum's
        if not _is_int(token_id) or not 0 <= token_id < vocab_size:
            expected, got = f"an integer in [0, {vocab_size})", repr(token_id)
            message = f"prompt token id {got} at position {position} is not in the vocabulary"
            raise RequestError(message, position=position, expected=expected, got=got)
    return _as_array(token_ids)


def _as_array(token_ids: Sequence[int]) -> NDArray[np.int64]:
    import numpy as np  # here: text and tokenizers know requests, and do without it

    return np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_int(name: str, value: Any, expected: str, *, low: int, high: int | None = None) -> None:
    if not _is_int(value) or value < low or (high is not None and value > high):
        raise _bad(name, expected, value)


def _check_float(
    name: str, value: Any, expected: str, *, low: float, high: float = math.inf, is_low_open: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < low or value > high or (is_low_open and value == low):
        raise _bad(name, expected, value)


def _bad(name: str, expected: str, value: object) -> RequestError:
    message = f"{name} must be {expected}, got {value!r}"
    return RequestError(message, fix=f"set {name} accordingly", field=name, expected=expected, got=repr(value))
