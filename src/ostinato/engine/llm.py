"""`LLM`: the Python API. Loads a model, answers prompts, streams, and says what its graphs did.

A thin front of `EngineLoop`: it makes requests from prompts and collects updates into outputs. A bad
request among several gets an output with its error; the others are unharmed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.engine.execution import (
    CostTable,
    Decision,
    DeviceLock,
    EngineGraphs,
    Executor,
    GraphKey,
    KeyReport,
    PlanInspection,
    QualificationReport,
    ReloadReport,
    ResizeReport,
    SizeSuggestion,
    SleepReport,
    StepQuery,
    load_model,
    qualify_steps,
)
from ostinato.engine.loop import EngineLoop
from ostinato.engine.outputs import RequestOutput, UpdateRouter
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import (
    FinishReason,
    LogitsProcessor,
    Request,
    SamplingParams,
    deadline_in,
    validate_prompt,
)
from ostinato.engine.scheduler import BatchShaper, Scheduler
from ostinato.engine.spare_time import SpareTime
from ostinato.engine.text import Tokenizer
from ostinato.engine.updates import RequestUpdate
from ostinato.engine.weights import ProgressReporter
from ostinato.errors import ClosedError, ConfigError, RequestError, RuntimeStateError
from ostinato.telemetry import EventBus, FailureCounters, LogSink, Sink

__all__ = ["LLM"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model that is loaded, warmed up and captured, ready to answer. Use as a context manager.

    Attributes:
        partition: how its graphs are made here, and what compiles them: ``breakable``, ``fx+inductor``, ...

    Args:
        model: hub name, local folder or file.
        config: all settings at once; its ``model`` is taken if ``model`` is left at its default.
        progress: told of download, loading, warm-up and capture.
        sinks: receivers of telemetry events.
        settings: fields of `EngineConfig`, changed from ``config``: ``mode="none"``, ``device="cpu"``, ...

    Raises:
        ConfigError, DeviceUnavailableError, ModelNotFoundError, CheckpointError, UnsupportedArchitectureError,
        OutOfMemoryError, UnwritableCacheError: see `load_model`.
        ForeignCostsError: the file of measured costs is of another device, model or version.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        config: EngineConfig | None = None,
        progress: ProgressReporter | None = None,
        sinks: Sequence[Sink] = (),
        **settings: Any,
    ) -> None:
        if isinstance(model, EngineConfig):
            raise ConfigError("model is an EngineConfig", fix="write LLM(config=...): its model is taken")
        known = {f.name for f in dataclasses.fields(EngineConfig)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ConfigError(f"unknown settings {unknown}", fix=f"use fields of EngineConfig: {sorted(known)}")
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(f"config is a {type(config).__name__}", fix="pass EngineConfig(...)")
        base = config or EngineConfig()
        if model != DEFAULT_MODEL:
            settings["model"] = model
        self._executor: Executor | None = None
        loaded = load_model(dataclasses.replace(base, **settings), progress=progress, waits=False)
        self._lock = DeviceLock(loaded.device)  # of steps, and of whatever else changes the loop
        self.tokenizer: Tokenizer | None = loaded.tokenizer
        self._reasons = loaded.reasons
        self._vocab_size = loaded.model.config.vocab_size
        self._failures = FailureCounters()
        try:
            self._graphs = EngineGraphs(loaded, sinks=(self._failures, *sinks), progress=progress)
        except BaseException:
            loaded.give_up_weights()
            raise
        self._executor = self._graphs.executor
        self.config = self._graphs.config
        assert self.config.max_num_reqs and self.config.max_num_batched_tokens and self.config.max_model_len
        self._max_model_len = self.config.max_model_len
        self.partition = self._graphs.partition
        allocator = PageAllocator(self._executor.num_pages, self.config.page_size)
        self._shaper = BatchShaper(**self._graphs.captures.sizes()) if self.config.shape_batches else None
        scheduler = Scheduler(
            max_num_reqs=self.config.max_num_reqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_model_len=self._max_model_len,
            allocator=allocator,
            shaper=self._shaper,
        )
        bus = EventBus(self._executor.graphed.counters, self._failures, LogSink(), *sinks)
        self._loop = EngineLoop(
            self._executor,
            scheduler,
            tokenizer=self.tokenizer,
            eos_token_ids=() if self.tokenizer is None else self.tokenizer.eos_token_ids,
            max_model_len=self._max_model_len,
            overlap=bool(self.config.overlap),
            bus=bus,
        )
        self._serial = itertools.count()
        self._updates = UpdateRouter(self._loop, self._require_open, bus=bus, lock=self._lock)
        self._background = self._graphs.background
        self._spare_time = SpareTime(
            self._loop,
            background=self._background,
            shadow=self._graphs.shadow,
            may_move=self.config.on_moved == "recapture",
        )
        if self._background is not None or self._graphs.shadow is not None:
            self._updates.between_steps = self._use_spare_time

    # --- whole answers -------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answer ``prompts`` together, in their order.

        Args:
            prompts: one text, or several texts or lists of token ids.
            params: for all, or one each; the default is greedy.

        Raises:
            RequestError: not one `SamplingParams` for each prompt.
        """
        is_one = isinstance(prompts, str | bytes | bytearray | Mapping) or not isinstance(prompts, Iterable)
        many: list[Prompt] = [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]
        if many and all(issubclass(kind, int) for kind in set(map(type, many))):
            many = [many]  # type: ignore[list-item]  # one prompt of token ids
        return self._run_all(many, params, self._encode)

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of ``{"role": ..., "content": ...}``.

        Args:
            conversations: one conversation, or several.
            params: for all, or one each.
        """
        if isinstance(conversations, str) or not isinstance(conversations, Sequence):
            got = type(conversations).__name__
            fix = 'send [{"role": "user", "content": ...}], or a list of such conversations'
            raise RequestError(f"a conversation cannot be of type {got}", fix=fix)
        is_one = bool(conversations) and isinstance(conversations[0], Mapping)
        many: list[Any] = [conversations] if is_one else list(conversations)
        return self._run_all(many, params, self._encode_chat)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[RequestUpdate]:
        """Answer one prompt update by update. Leaving the iterator early aborts the request.

        Raises:
            RequestError: the prompt cannot be run.
        """
        with self._lock:  # no other thread's step comes between
            return self._updates.follow(self.add_request(prompt, params))

    def stream_chat(self, messages: Messages, params: SamplingParams | None = None) -> Iterator[RequestUpdate]:
        """Like `stream`, for one conversation."""
        with self._lock:
            return self._updates.follow(self.add_chat(messages, params))

    # --- step by step --------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> str:
        """Queue a prompt; its id.

        Args:
            prompt: a text or a list of token ids.
            params: how to sample; the default is greedy.
            request_id: a name of the caller's own.
            timeout_s: seconds from now after which the request ends with TIMEOUT and what it has by then.
            logits_processors: see `Request`.

        Raises:
            RequestError: empty, too long, ids out of range, an id in use, or a bad timeout.
            AsleepError: the engine sleeps; call `wake`.
            EngineDeadError: the engine takes no more requests.
        """
        return self._add(self._encode(prompt), params, request_id, timeout_s, tuple(logits_processors))

    def add_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Queue a conversation, rendered by the model's chat template; its id. See `add_request`."""
        return self._add(self._encode_chat(messages), params, request_id, timeout_s)

    def step(self) -> list[RequestUpdate]:
        """Run one engine step over all queued requests; updates of those that were added one by one.

        Raises:
            EngineDeadError: the engine is dead, and every request was told.
        """
        self._updates.step()
        return self._updates.take_unread()

    def has_work(self) -> bool:
        """Whether a request is in progress or an update undelivered."""
        return self._updates.has_unread or self._loop.has_work()

    def abort(self, request_id: str) -> None:
        """End a request; its last update says ABORT."""
        with self._lock:
            self._loop.abort(request_id)

    # --- about it ------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """``{"dispatch", "failures", "graphs": {count, segments, pool_bytes, break_argument_bytes, executables:
        {count, nodes, shared_groups, switches, bytes}, capture_seconds}, "host", "sleep": {state, sleeps}, "weights":
        {source, reloads, whole}, "config"}``.

        "dispatch" is `DispatchCounters.snapshot`, "failures" what went wrong, by kind (`FailureCounters`), "host"
        `HostTime.to_dict`: the host's work a step, less its waiting for the device. With ``shadow_every`` there is
        "shadow" too, of `ShadowTurns.to_dict`.
        """
        executor = self._require_open()
        graphed, captures = executor.graphed, self._graphs.captures
        plans = graphed.plans.values()
        config = dataclasses.asdict(self.config)
        config |= {
            "kv_tokens": executor.kv_tokens,
            "resolved_mode": graphed.mode.mode.value,
            "reasons": {**self._reasons, **self._graphs.reasons, "mode": graphed.mode.mode_reason},
        }
        return {
            "dispatch": graphed.counters.snapshot(),
            "failures": self._failures.snapshot(),
            "graphs": {
                "count": len(plans),
                "segments": sum(plan.num_segments for plan in plans),
                "pool_bytes": graphed.backend.memory().reserved_bytes,
                "break_argument_bytes": graphed.break_argument_bytes().to_dict(),
                "executables": {**graphed.backend.executables().to_dict(), "bytes": captures.executable_bytes},
                "capture_seconds": captures.seconds,
                **({} if self._background is None else {"background": self._background.to_dict()}),
            },
            **({} if self._graphs.shadow is None else {"shadow": self._graphs.shadow.to_dict()}),
            "host": self._loop.host_time.to_dict(),
            "sleep": self._graphs.sleep.to_dict(),
            "weights": self._graphs.weights.to_dict(),
            "config": config,
        }

    def inspect(self) -> list[PlanInspection]:
        """Segments, breaks and bridges of every captured graph, largest first."""
        with self._lock:  # no key retires meanwhile
            graphed = self._require_open().graphed
            return [graphed.inspect(key) for key in graphed.plans]

    @property
    def costs(self) -> CostTable | None:
        """The measured costs that decide how steps run, with ``dispatch="measured"``."""
        return self._require_open().graphed.costs

    def explain(self, query: StepQuery) -> Decision:
        """What a step of so many requests and tokens would run as, and why not otherwise. Runs nothing.

        Raises:
            ConfigError: no step can be so large.
        """
        graphed = self._require_open().graphed
        return graphed.decide(query.live(self.config, graphed.config.kv_tiers))

    def qualify(self, *, on_key: Callable[[KeyReport], None] | None = None) -> QualificationReport:
        """Compare every captured graph with eager on made-up batches; keys that differ are quarantined. With
        ``on_moved="recapture"`` graphs that read what has moved are captured anew later, and not compared now.

        Args:
            on_key: told of each key when it is done.

        Raises:
            RuntimeStateError: requests are in progress, whose cache it would overwrite.
        """
        with self._lock:
            executor = self._require_ready()
            self._require_idle("qualify")
            return qualify_steps(executor, seed=self.config.seed, on_key=on_key)

    def sleep(self) -> SleepReport:
        """Give all graphs back, and the memory of the KV cache where the device can take it; weights stay.

        Requests are refused until `wake`. What was given back, and what was not, says the report.

        Raises:
            RuntimeStateError: requests are in progress.
            AsleepError: it sleeps already.
            EngineDeadError: the engine is dead.
        """
        with self._lock:
            self._require_ready()
            self._require_idle("sleep")
            return self._graphs.fall_asleep()

    def wake(self, *, on_key: Callable[[GraphKey], None] | None = None) -> None:
        """Capture again what was captured before `sleep`, and take the memory of the cache back.

        What was quarantined stays so. What background capture had still to do comes in the background.

        Args:
            on_key: told of each key once it is warm and once it is captured.

        Raises:
            RuntimeStateError: it does not sleep.
            OutOfMemoryError, CaptureError: the memory was taken by others, or no key can be captured; it sleeps on.
            AddressChangedError: something that a graph reads does not lie where it was captured; it sleeps on.
        """
        with self._lock:
            self._require_open()
            self._graphs.sleep.end(on_key=on_key)

    def reload_weights(self, model: str | None = None, *, progress: ProgressReporter | None = None) -> ReloadReport:
        """Serve with other weights of the same model, written into the tensors that graphs read: no graph is captured.

        The checkpoint's files, names and shapes are checked before the first tensor is written, so that one that does
        not fit changes nothing. Then two things are verified: that every tensor a graph reads lies where it lay at
        capture, and that the smallest graph of each kind does what eager does with the new weights. An engine that
        sleeps has no graphs; its next ones are captured by `wake`. The tokenizer stays.

        Args:
            model: hub name, local folder or file; None reads again what the engine was opened with.
            progress: told of download and loading.

        Raises:
            ConfigError: ``model`` is no name.
            ModelNotFoundError, UnsupportedArchitectureError: as their names say; nothing was changed.
            CheckpointError: it is incomplete, or of another shape or configuration; nothing was changed.
            AddressChangedError: a tensor that a graph reads was moved before; nothing was changed. Not with
                ``on_moved="recapture"``: then its graphs are captured anew.
            RuntimeStateError: requests are in progress.
            QualificationError: a graph differs from eager with the new weights; its key is quarantined.
        """
        with self._lock:
            self._require_open()
            self._require_idle("reload weights")
            return self._graphs.weights.reload(model, progress=progress)

    def suggest_sizes(self, *, min_steps: int = 1000, min_saved_percent: float = 5.0) -> SizeSuggestion:
        """Sizes to capture that suit the steps served so far better, or why there are none; for `apply_sizes`.

        Args:
            min_steps: of a kind, fewer of which say nothing.
            min_saved_percent: of the rows that the steps compute, or of the steps that find no graph.

        Raises:
            ConfigError: a threshold that is none.
        """
        graphed = self._require_open().graphed
        return graphed.suggest_sizes(min_steps=min_steps, min_saved_percent=min_saved_percent)

    def apply_sizes(
        self, suggestion: SizeSuggestion, *, on_key: Callable[[GraphKey], None] | None = None
    ) -> ResizeReport:
        """Capture the suggested sizes and retire the cold ones between two steps; requests in progress go on after it.

        A key that fails is dropped alone, and then nothing is retired. No request moves while it runs.

        Args:
            suggestion: from `suggest_sizes`; one without changes changes nothing.
            on_key: told of each new key when it is captured, or is not.

        Raises:
            RuntimeStateError: from inside a step, or the engine sleeps.
            ConfigError: the sizes do not fit this engine.
            EngineDeadError: the engine is dead.
        """
        if not isinstance(suggestion, SizeSuggestion):
            raise ConfigError(f"suggestion is a {type(suggestion).__name__}", fix="pass what suggest_sizes() returned")
        with self._lock:
            self._require_ready()
            self._loop.settle()
            report = self._graphs.resize(sizes=suggestion.sizes, decode_sizes=suggestion.decode_sizes, on_key=on_key)
            if self._shaper is not None:
                self._shaper.follow(**self._graphs.captures.sizes())
            return report

    def capture_pending(self, *, max_seconds: float = float("inf")) -> int:
        """Use idle time: compare the step that a shadow has kept, and capture graphs that ``capture="background"`` has
        left for later, or that read what has moved; how many are still to come.

        Returns at once while requests are in progress: between their steps graphs are captured anyway.

        Args:
            max_seconds: begin nothing that would end later than that from now.

        Raises:
            ConfigError: ``max_seconds`` is no number.
            AsleepError: the engine sleeps; `wake` captures.
            EngineDeadError: the engine is dead.
        """
        if not isinstance(max_seconds, int | float) or math.isnan(max_seconds):
            raise ConfigError(f"max_seconds is {max_seconds!r}", fix="use a number of seconds, or leave it out")
        self._require_open()
        background, began = self._background, time.monotonic()
        with self._lock:
            if not (self._graphs.sleep.is_asleep or self._loop.has_work()):
                self._spare_time.compare_kept(max_seconds=max_seconds)
        while background is not None and background.num_pending:
            with self._lock:
                self._require_ready()
                if self._loop.has_work() or time.monotonic() - began + background.expected_seconds > max_seconds:
                    break
                self._loop.settle()
                background.capture_next(is_idle=True)
        return 0 if background is None else background.num_pending

    def _use_spare_time(self) -> None:
        """Between two steps, with the lock held."""
        if not self._graphs.sleep.is_asleep:
            self._spare_time.use()
            if not self._spare_time.is_needed:
                self._updates.between_steps = None

    def close(self) -> None:
        """Give graphs, cache and weights back, once a step that runs on another thread is through.

        The manifest, if there is one, is brought up to date. Idempotent.
        """
        with self._lock:
            if self._executor is not None:
                self._graphs.close()
                self._executor = None

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- inside --------------------------------------------------------------------------------

    def _run_all(
        self,
        inputs: list[Any],
        params: SamplingParams | Sequence[SamplingParams] | None,
        encode: Callable[[Any], list[int]],
    ) -> list[RequestOutput]:
        each = list(params) if isinstance(params, Sequence) else [params] * len(inputs)
        if len(each) != len(inputs):
            raise RequestError(f"{len(inputs)} prompts and {len(each)} params", fix="give one SamplingParams for each")
        outputs: list[RequestOutput] = []
        try:
            for item, one in zip(inputs, each, strict=True):
                output = RequestOutput(request_id="", prompt=item if isinstance(item, str) else None)
                outputs.append(output)
                try:
                    output.prompt_token_ids = encode(item)
                    with self._lock:  # no other thread's step comes between
                        output.request_id = self._add(output.prompt_token_ids, one, None, is_streamed=False)
                        self._updates.register(output.request_id, output.extend)
                except RequestError as error:
                    output.finish_reason, output.error = FinishReason.ERROR, error
            for output in outputs:
                self._updates.run_until(partial(_is_finished, output))
        except BaseException:  # nobody will read the answers
            for output in outputs:
                if output.request_id and output.finish_reason is None:
                    self.abort(output.request_id)
            raise
        return outputs

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("this model has no tokenizer", fix="send the prompt as token ids")
            return _encoded(self.tokenizer.encode, prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            got = type(prompt).__name__
            raise RequestError(f"a prompt cannot be of type {got}", fix="send a text or a list of token ids")
        return list(prompt)  # type: ignore[arg-type]  # a str has been dealt with

    def _encode_chat(self, messages: Messages) -> list[int]:
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer, so no chat template", fix="send token ids to add_request")
        if not isinstance(messages, Iterable) or not all(isinstance(m, Mapping) for m in messages):
            raise RequestError("a conversation is a list of messages", fix='send [{"role": ..., "content": ...}, ...]')
        return _encoded(self.tokenizer.encode_chat, [dict(m) for m in messages])

    def _add(
        self,
        token_ids: list[int],
        params: SamplingParams | None,
        request_id: str | None,
        timeout_s: float | None = None,
        logits_processors: tuple[LogitsProcessor, ...] = (),
        *,
        is_streamed: bool = True,
    ) -> str:
        self._require_open()
        if request_id is not None and not isinstance(request_id, str):
            raise RequestError(f"a request id cannot be of type {type(request_id).__name__}", fix="use a text")
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(f"params cannot be of type {type(params).__name__}", fix="send SamplingParams(...)")
        if params is not None and params.stop and self.tokenizer is None:
            raise RequestError("this model has no tokenizer, so no stop strings", fix="use stop_token_ids")
        ids = validate_prompt(token_ids, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        name = request_id or f"request-{next(self._serial)}"
        request = Request(
            request_id=name,
            prompt_token_ids=token_ids,
            checked_ids=ids,
            params=params or SamplingParams(),
            deadline=None if timeout_s is None else deadline_in(timeout_s),
            logits_processors=logits_processors,
            is_streamed=is_streamed,
        )
        with self._lock:
            self._require_ready()
            self._loop.add(request)
        return name

    def _require_open(self) -> Executor:
        if self._executor is None:
            raise ClosedError("this LLM was closed", fix="make a new one, or keep the with block open")
        return self._executor

    def _require_ready(self) -> Executor:
        executor = self._require_open()
        self._graphs.require_ready()
        return executor

    def _require_idle(self, what: str) -> None:
        self._loop.settle()
        if self._loop.has_work():
            raise RuntimeStateError("requests are in progress", fix=f"{what} before the first, or after the last")


def _is_finished(output: RequestOutput) -> bool:
    return output.finish_reason is not None


def _encoded(encode: Callable[[Any], list[int]], text: Any) -> list[int]:
    try:
        return encode(text)
    except (TypeError, UnicodeError) as error:  # half of a surrogate pair, say
        raise RequestError(f"the prompt cannot be encoded: {error}", fix="send valid Unicode text") from error
