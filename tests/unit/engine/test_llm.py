"""`LLM` on tiny models: bad prompts beside good ones, refusals at the start, streams, stats, and closing."""

from __future__ import annotations

import functools
import gc
import json
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato import LLM
from ostinato.engine.config import EngineConfig
from ostinato.engine.execution import Executor, ShadowTurns, memory_budget
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.kv_pool import KvPool
from ostinato.engine.request import FinishReason, Request, SamplingParams
from ostinato.errors import (
    CheckpointError,
    ClosedError,
    ConfigError,
    DeviceUnavailableError,
    ModelNotFoundError,
    OutOfMemoryError,
    RequestError,
    RuntimeStateError,
    UnknownNameError,
    UnsupportedArchitectureError,
)
from ostinato.testing.tiny_models import TINY_FAMILIES, write_tiny_model

MODES = ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto"]
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 32,
    "kv_tokens": 512,
}
GOOD: list[Any] = ["hello the world", [5], [7, 8, 9, 250], "and so on"]
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def make(family: str) -> Path:
        return write_tiny_model(tmp_path_factory.mktemp(family), family)

    return make


LLMMaker = Callable[..., LLM]


@pytest.fixture(scope="module")
def shared(tiny_dir: Callable[[str], Path]) -> Iterator[LLMMaker]:
    """One LLM a mode; tests leave it without work."""
    with ExitStack() as stack:

        @functools.cache
        def make(mode: str = "auto") -> LLM:
            return stack.enter_context(LLM(str(tiny_dir("llama")), mode=mode, **SETTINGS))

        yield make


@pytest.fixture
def llm(shared: LLMMaker) -> Iterator[LLM]:
    engine = shared()
    yield engine
    left = [*engine._loop._scheduler.running, *engine._loop._scheduler.waiting]
    for request in left:  # so that other tests are not told of it
        engine.abort(request.request_id)
    unread = []
    while engine.has_work():
        unread += engine.step()
    assert left == unread == [], "the test left work behind"
    check_pages(engine)
    assert engine._updates.num_receivers == 0


def check_pages(engine: LLM) -> None:
    """No page is lost, and all are free once nothing runs."""
    scheduler = engine._loop._scheduler
    scheduler._allocator.check_integrity([request.pages for request in scheduler.running])
    if not engine.has_work():
        assert scheduler._allocator.num_free_pages == scheduler._allocator.num_usable_pages


@functools.cache
def _expected(engine: LLM) -> list[list[int]]:
    return [engine.generate([prompt], TEN)[0].token_ids for prompt in GOOD]


def assert_good(engine: LLM, outputs: list[Any]) -> None:
    """``outputs`` are those of `GOOD`, each as it is alone."""
    assert [output.error for output in outputs] == [None] * len(GOOD)
    assert [output.token_ids for output in outputs] == _expected(engine)
    assert all(output.finish_reason is FinishReason.LENGTH for output in outputs)


# --- prompts ----------------------------------------------------------------------------------------

BAD: list[tuple[Any, str]] = [
    ("", "no tokens"),
    ([], "no tokens"),
    ("x" * 64, "too long"),
    ([1] * 64, "too long"),
    ([1, 272], "272"),
    ([-1], "-1"),
    ([1, 2.0], "2.0"),
    ([1, None], "None"),
    ([True], "True"),
    (["a"], "'a'"),
    (None, "NoneType"),
    (3.5, "float"),
    (b"bytes", "bytes"),
    ({"prompt": "x"}, "dict"),
    (torch.tensor([1, 2]), "Tensor"),
    ("half a pair: \ud83d", "encoded"),
]


@pytest.mark.parametrize(("prompt", "words"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_a_bad_prompt_among_good_ones(llm: LLM, prompt: Any, words: str) -> None:
    first, bad, *rest = llm.generate([GOOD[0], prompt, *GOOD[1:]], TEN)
    assert isinstance(bad.error, RequestError) and words in str(bad.error)
    assert (bad.finish_reason, bad.token_ids, bad.text) == (FinishReason.ERROR, [], "")
    assert_good(llm, [first, *rest])


def test_all_bad_prompts_together(llm: LLM) -> None:
    prompts = [item for pair in zip([p for p, _ in BAD[:4]], GOOD, strict=True) for item in pair]
    outputs = llm.generate(prompts, TEN)
    assert all(isinstance(output.error, RequestError) for output in outputs[::2])
    assert_good(llm, outputs[1::2])


@pytest.mark.parametrize("params", ["greedy", {"max_tokens": 3}, 7])
def test_params_of_another_type(llm: LLM, params: Any) -> None:
    outputs = llm.generate([GOOD[0], "x", *GOOD[1:]], [TEN, params, TEN, TEN, TEN])
    assert isinstance(outputs[1].error, RequestError) and type(params).__name__ in str(outputs[1].error)
    assert_good(llm, [outputs[0], *outputs[2:]])


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 prompts and 3 params"):
        llm.generate(["a", "b"], [TEN] * 3)
    each = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 4, 2)]
    assert [len(o.token_ids) for o in llm.generate(["a", "b", "c"], each)] == [1, 4, 2]


def test_forms_of_one_prompt(llm: LLM) -> None:
    (text,) = llm.generate("hello", TEN)
    assert text.prompt == "hello" and len(text.token_ids) == 10
    assert text.text == llm.tokenizer.decode(text.token_ids)  # type: ignore[union-attr]
    ids = llm.tokenizer.encode("hello")  # type: ignore[union-attr]
    for form in (ids, tuple(ids), [ids]):
        (same,) = llm.generate(form, TEN)
        assert same.token_ids == text.token_ids and same.prompt is None
    assert llm.generate([], TEN) == []
    (alone,) = llm.generate(None, TEN)  # type: ignore[arg-type]
    assert isinstance(alone.error, RequestError)


def test_default_params_are_greedy(llm: LLM) -> None:
    first, second = (llm.generate("hello")[0] for _ in range(2))
    assert first.token_ids == second.token_ids and 0 < len(first.token_ids) <= 64 - len("hello")


def test_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hello"}]
    rendered = "<|start|>user\nhello<|end|>\n<|start|>assistant\n"
    ids = llm.tokenizer.encode(rendered)  # type: ignore[union-attr]
    (one,) = llm.chat(conversation, TEN)
    assert one.token_ids == llm.generate([ids], TEN)[0].token_ids
    bad: list[Any] = [None, ["text"], [{"role": "user", "content": "\ud83d"}], 5]
    outputs = llm.chat([conversation, *bad, conversation], TEN)
    assert [output.error is None for output in outputs] == [True, *[False] * len(bad), True]
    assert all(isinstance(output.error, RequestError) for output in outputs[1:-1])
    assert outputs[0].token_ids == outputs[-1].token_ids == one.token_ids
    assert "".join(u.text for u in llm.stream_chat(conversation, TEN)) == one.text


def test_an_engine_without_a_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    with LLM(str(folder), load_format="dummy", **SETTINGS) as engine:
        stops = SamplingParams(stop=("x",))
        outputs = engine.generate([[1, 2], "text", [3]], [TEN, TEN, stops])
        assert len(outputs[0].token_ids) == 10 and outputs[0].text == ""
        assert isinstance(outputs[1].error, RequestError) and "tokenizer" in str(outputs[1].error)
        assert isinstance(outputs[2].error, RequestError) and "stop strings" in str(outputs[2].error)
        with pytest.raises(RequestError, match="tokenizer"):
            engine.add_chat([{"role": "user", "content": "x"}])


# --- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_seeds_repeat_in_every_mode(shared: LLMMaker, mode: str) -> None:
    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True) for seed in (1, 2, 1, 3)]
    prompts = ["hello", "hello", "hello", "and"]
    outputs = shared(mode).generate(prompts, params)
    reference = [shared("none").generate([p], [q])[0].token_ids for p, q in zip(prompts, params, strict=True)]
    assert [output.token_ids for output in outputs] == reference
    assert outputs[0].token_ids == outputs[2].token_ids != outputs[1].token_ids


@pytest.mark.parametrize("mode", MODES[1:])
def test_logprobs_are_those_of_eager(shared: LLMMaker, mode: str) -> None:
    params = SamplingParams(max_tokens=8, logprobs=3, ignore_eos=True)
    ours, eager = (shared(m).generate(GOOD, params) for m in (mode, "none"))
    for output, expected in zip(ours, eager, strict=True):
        assert len(output.logprobs) == len(expected.logprobs) == 8
        for a, b in zip(output.logprobs, expected.logprobs, strict=True):
            assert (a.token_id, a.rank) == (b.token_id, b.rank) == (a.token_id, 1)
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [t for t, _ in a.top] == [t for t, _ in b.top]
            assert [p for _, p in a.top] == pytest.approx([p for _, p in b.top], abs=1e-4)


def test_stop_strings(llm: LLM) -> None:
    (whole,) = llm.generate("hello the world", TEN)
    for begin in range(len(whole.text)):
        stop = whole.text[begin : begin + 2]
        if "\ufffd" in whole.text[: begin + 2] or len(stop) < 2:
            continue
        (cut,) = llm.generate("hello the world", SamplingParams(max_tokens=10, stop=stop, ignore_eos=True))
        assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason is FinishReason.STOP
        return
    pytest.skip("the model said nothing to stop at")


def test_more_prompts_than_requests_that_run_at_once(llm: LLM) -> None:
    outputs = llm.generate(GOOD * 5, TEN)
    for start in range(0, 20, 4):
        assert_good(llm, outputs[start : start + 4])


# --- streams and steps ------------------------------------------------------------------------------


def test_a_stream_is_the_answer(llm: LLM) -> None:
    (whole,) = llm.generate("hello", TEN)
    updates = list(llm.stream("hello", TEN))
    assert "".join(u.text for u in updates) == whole.text
    assert [t for u in updates for t in u.token_ids] == whole.token_ids
    assert [u.finish_reason for u in updates] == [None] * 9 + [FinishReason.LENGTH]


def test_a_bad_prompt_is_refused_before_the_stream_begins(llm: LLM) -> None:
    with pytest.raises(RequestError):
        llm.stream("")


@pytest.mark.parametrize("num_read", [0, 1, 4])
def test_leaving_a_stream_early_aborts_it(llm: LLM, num_read: int) -> None:
    stream = llm.stream("hello", SamplingParams(max_tokens=50, ignore_eos=True))
    for _ in range(num_read):
        next(stream)
    assert len(llm._loop._scheduler.running + llm._loop._scheduler.waiting) == 1
    check_pages(llm)
    del stream
    assert llm._loop._scheduler.running == llm._loop._scheduler.waiting == ()
    check_pages(llm)
    assert llm.step() == [], "the abort's update belongs to the stream, which is gone"


def test_streams_and_calls_may_be_mixed(llm: LLM) -> None:
    """Whoever runs the steps, each caller gets its own updates, all of them."""
    expected = [llm.generate(prompt, TEN)[0].token_ids for prompt in ("a", "b", "c", "d")]
    by_step = llm.add_request("d", TEN)
    streams = [llm.stream("a", TEN), llm.stream("b", TEN)]
    got: list[list[int]] = [[], [], [], []]
    for _ in range(3):
        for stream, tokens in zip(streams, got, strict=False):
            tokens.extend(next(stream).token_ids)
    got[2] = llm.generate("c", TEN)[0].token_ids  # runs all others to their end meanwhile
    for stream, tokens in zip(streams, got, strict=False):
        for update in stream:
            tokens.extend(update.token_ids)
    assert llm.has_work(), "updates of the request that was added by itself wait for step()"
    while llm.has_work():
        for update in llm.step():
            assert update.request_id == by_step
            got[3].extend(update.token_ids)
    assert got == expected


def test_step_by_step(llm: LLM) -> None:
    names = [llm.add_request("hello", TEN), llm.add_request([5], TEN, request_id="mine")]
    assert names[1] == "mine" and names[0] != "mine"
    with pytest.raises(RequestError, match="in use"):
        llm.add_request("x", request_id="mine")
    llm.step()
    llm.abort("mine")
    reasons = {}
    while llm.has_work():
        reasons |= {u.request_id: u.finish_reason for u in llm.step() if u.finish_reason}
    assert reasons == {names[0]: FinishReason.LENGTH, "mine": FinishReason.ABORT}


def test_an_exception_in_generate_aborts_its_requests_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = llm.add_request("hello", TEN)
    execute, calls = Executor.execute, 0

    def fails_at_the_third(self: Executor, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return execute(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "execute", fails_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(GOOD, TEN)
    assert [request.request_id for request in llm._loop._scheduler.running] == [mine]
    tokens: list[int] = []
    while llm.has_work():
        for update in llm.step():
            assert update.request_id == mine
            tokens.extend(update.token_ids)
    assert tokens == llm.generate("hello", TEN)[0].token_ids


# --- refusals at the start --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"speed": 11}, ConfigError, "speed"),
        ({"mode": "ful"}, UnknownNameError, "full"),
        ({"dtype": "float8"}, UnknownNameError, "float8"),
        ({"device": "tpu"}, UnknownNameError, "tpu"),
        ({"attention": "flash"}, UnknownNameError, "flash"),
        ({"attention": "triton"}, DeviceUnavailableError, "triton"),
        ({"load_format": "gguf"}, UnknownNameError, "gguf"),
        ({"max_num_reqs": 0}, ConfigError, "max_num_reqs"),
        ({"max_num_reqs": 33}, ConfigError, "max_num_batched_tokens"),
        ({"max_model_len": 1000}, ConfigError, "max_model_len"),
        ({"decode_sizes": (0,)}, ConfigError, "decode_sizes"),
        ({"decode_sizes": (5,)}, ConfigError, "max_num_reqs"),
        ({"token_sizes": (-8,)}, ConfigError, "token_sizes"),
        ({"token_sizes": (33,)}, ConfigError, "max_num_batched_tokens"),
        ({"token_sizes": ()}, ConfigError, "token_sizes"),
        ({"kv_tokens": 8}, ConfigError, "kv_tokens"),
        ({"page_size": 0}, ConfigError, "page_size"),
        ({"kv_tokens": 10**12}, OutOfMemoryError, "1000000000000 tokens"),
        ({"model": "./nowhere"}, ModelNotFoundError, "nowhere"),
    ],
)
def test_bad_settings(
    tiny_dir: Callable[[str], Path], settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    settings = {"model": str(tiny_dir("llama")), **SETTINGS, **settings}
    with pytest.raises(error) as caught:
        LLM(**settings)
    assert words in str(caught.value)


def test_no_cuda_device(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailableError, match="cuda"):
        LLM(str(tiny_dir("llama")), **{**SETTINGS, "device": "cuda"})


@pytest.mark.parametrize(
    ("available", "kv_tokens", "words"),
    [(1000, 512, "the weights need"), (2 * 10**6, 5120, "5120 tokens needs")],
)
def test_too_little_memory(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, available: int, kv_tokens: int, words: str
) -> None:
    monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: available)
    with pytest.raises(OutOfMemoryError, match=words) as caught:
        LLM(str(tiny_dir("llama")), **{**SETTINGS, "kv_tokens": kv_tokens})
    assert "GiB" in caught.value.message and caught.value.fix


def test_the_cache_gets_what_graphs_have_left(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured over more addresses than there is memory for in the end; answers are the same, and pages run out."""
    settle = KvPool.settle

    def with_little_left(self: KvPool) -> None:
        monkeypatch.setattr(memory_budget, "available_bytes", lambda _device: 2 * 9 * 16 * self._token_bytes)
        settle(self)

    settings = {**SETTINGS, "kv_tokens": None, "page_size": 16, "max_model_len": 100}
    with LLM(str(tiny_dir("llama")), **settings) as llm:
        expected = [output.token_ids for output in llm.generate(GOOD, TEN)]
    monkeypatch.setattr(KvPool, "settle", with_little_left)
    with LLM(str(tiny_dir("llama")), **settings) as llm:
        executor = llm._require_open()
        assert llm.stats()["config"]["kv_tokens"] == 8 * 16 < (executor._kv.max_pages - 1) * 16
        assert [output.token_ids for output in llm.generate(GOOD, TEN)] == expected
        assert llm.stats()["dispatch"]["by_runtime_mode"]["FULL"] > 0


def test_bad_checkpoints(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        LLM(str(folder), **SETTINGS)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        LLM(str(folder), **SETTINGS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UnsupportedArchitectureError, match="Mamba"):
        LLM(str(folder), load_format="dummy", **SETTINGS)


def test_settings_come_from_the_config_and_are_changed_by_name(tiny_dir: Callable[[str], Path]) -> None:
    config = EngineConfig(model=str(tiny_dir("llama")), **{**SETTINGS, "mode": "none"})
    with LLM(config=config) as engine:
        assert engine.config.mode == "none" and engine.config.model == config.model
    with LLM(str(tiny_dir("qwen2")), config=config, max_num_reqs=2) as engine:
        assert (engine.config.max_num_reqs, engine.config.model) == (2, str(tiny_dir("qwen2")))


def test_progress(tiny_dir: Callable[[str], Path]) -> None:
    told: list[tuple[Any, ...]] = []

    class Reporter:
        def start(self, what: str, total: int | None, unit: str) -> None:
            told.append((what, total, unit))
            self.done = 0

        def advance(self, amount: int) -> None:
            self.done += amount

        def finish(self) -> None:
            told.append(("done", self.done))

    with LLM(str(tiny_dir("llama")), progress=Reporter(), **SETTINGS) as engine:
        num_graphs = engine.stats()["graphs"]["count"]
    assert told[-2:] == [("warm-up and capture", 2 * num_graphs, "passes"), ("done", 2 * num_graphs)]
    assert num_graphs > 0


def test_a_start_tells_the_log_what_takes_time(
    tiny_dir: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), LLM(str(tiny_dir("llama")), **SETTINGS) as engine:
        num_graphs = engine.stats()["graphs"]["count"]
    assert not caplog.messages, "nobody asked"
    with caplog.at_level(logging.INFO), LLM(str(tiny_dir("llama")), **SETTINGS):
        pass
    told = [text for text in caplog.messages if text.startswith("warm-up and capture ")]
    assert told[0] == f"warm-up and capture begins: {2 * num_graphs} passes"
    assert re.fullmatch(r"warm-up and capture ended after \d+\.\d s", told[1])


# --- stats and the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_stats_are_plain_values_and_add_up(shared: LLMMaker, mode: str) -> None:
    engine = shared(mode)
    engine.generate(GOOD, TEN)
    stats = engine.stats()
    assert json.loads(json.dumps(stats, allow_nan=False))["dispatch"] == stats["dispatch"]
    dispatch, graphs, config = stats["dispatch"], stats["graphs"], stats["config"]
    assert dispatch["steps"] == sum(dispatch["by_runtime_mode"].values()) == sum(dispatch["by_reason"].values())
    assert dispatch["steps"] == sum(row["hits"] for row in dispatch["buckets"]) > 0
    assert (graphs["count"] == 0) is (mode == "none")
    assert (graphs["segments"] > 0) is (graphs["pool_bytes"] > 0) is (mode != "none")
    arguments = graphs["break_argument_bytes"]
    assert (arguments["owned"] > 0) is (arguments["segment"] > 0) is (mode not in ("none", "full_decode_only"))
    assert arguments["recycled"] == 0, "attention is given nothing but what segments write, so its arguments are free"
    assert config["mode"] == mode and config["kv_tokens"] == 512
    assert config["resolved_mode"] == {"auto": "full_and_piecewise", "full": "full_and_piecewise"}.get(mode, mode)
    assert set(config["reasons"]) >= {"mode", "dtype", "attention"}


def test_ownership_is_the_users_choice(tiny_dir: Callable[[str], Path], shared: LLMMaker) -> None:
    """Owned, each bucket keeps what attention is given for itself; answers are the same."""
    recycled = shared("piecewise")
    assert recycled.config.ownership == recycled._require_open().graphed.config.ownership == "recycled"
    with LLM(str(tiny_dir("llama")), mode="piecewise", ownership="owned", **SETTINGS) as engine:
        assert engine._require_open().graphed.config.ownership == "owned"
        assert_good(recycled, engine.generate(GOOD, TEN))
        pools = [llm.stats()["graphs"]["pool_bytes"] for llm in (recycled, engine)]
        assert pools[1] > pools[0]
        assert engine.stats()["graphs"]["break_argument_bytes"]["owned"] <= pools[1]
    with pytest.raises(UnknownNameError, match="unknown ownership 'shared'"):
        LLM(str(tiny_dir("llama")), ownership="shared", **SETTINGS)


def test_a_closed_engine(tiny_dir: Callable[[str], Path]) -> None:
    with LLM(str(tiny_dir("llama")), **SETTINGS) as engine:
        stream = engine.stream("hello", TEN)
        next(stream)
    engine.close()
    for call in (
        lambda: engine.generate("x"),
        lambda: engine.add_request("x"),
        lambda: engine.chat([{"role": "user", "content": "x"}]),
        lambda: engine.stream("x"),
        lambda: next(stream),
        engine.step,
        engine.stats,
        engine.__enter__,
    ):
        with pytest.raises(ClosedError):
            call()


def test_close_waits_for_a_step_on_another_thread(
    tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LLM(str(tiny_dir("llama")), **SETTINGS)
    is_in_step, may_go_on = threading.Event(), threading.Event()
    launch = Executor.launch

    def slowly(self: Executor, *args: Any) -> Any:
        is_in_step.set()
        assert may_go_on.wait(30)
        return launch(self, *args)

    monkeypatch.setattr(Executor, "launch", slowly)
    updates: list[Any] = []
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=1, ignore_eos=True))
    step = threading.Thread(target=lambda: updates.extend(engine.step()))
    step.start()
    assert is_in_step.wait(30)
    close = threading.Thread(target=engine.close)
    close.start()
    close.join(0.2)
    assert close.is_alive(), "it took the engine away from under a step"
    may_go_on.set()
    step.join(30)
    close.join(30)
    assert [(update.finish_reason, update.error) for update in updates] == [(FinishReason.LENGTH, None)]
    with pytest.raises(ClosedError):
        engine.stats()


@pytest.mark.parametrize("mode", ["none", "full_and_piecewise"])
def test_close_gives_weights_cache_and_graphs_back(tiny_dir: Callable[[str], Path], mode: str) -> None:
    engine = LLM(str(tiny_dir("llama")), mode=mode, **SETTINGS)
    engine.generate(GOOD, TEN)
    executor = engine._executor
    assert executor is not None
    owned = [weakref.ref(executor._model), weakref.ref(executor._kv.reserved[0].key.untyped_storage())]
    backend = executor.graphed.backend
    engine.close()
    del executor
    gc.collect()
    assert [ref() for ref in owned] == [None, None], "still held, with the LLM itself alive"
    assert backend.memory().reserved_bytes == backend.memory().num_graphs == 0


def test_a_failed_start_leaves_nothing(tiny_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Executor] = []
    close = Executor.close

    def fails(self: Captures, **_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Captures, "start", fails)
    monkeypatch.setattr(Executor, "close", lambda self: (closed.append(self), close(self))[1])
    with pytest.raises(RuntimeError, match="planted"):
        LLM(str(tiny_dir("llama")), **SETTINGS)
    assert len(closed) == 1 and closed[0]._kv is None


def test_instances_do_not_disturb_each_other(tiny_dir: Callable[[str], Path]) -> None:
    """Two models stepped in turn give what each gives alone; closing one leaves the other as it was."""
    with ExitStack() as stack:
        engines = [stack.enter_context(LLM(str(tiny_dir(family)), **SETTINGS)) for family in ("llama", "qwen3")]
        alone = [[output.token_ids for output in engine.generate(GOOD, TEN)] for engine in engines]
        assert alone[0] != alone[1]
        found: list[dict[str, list[int]]] = [{}, {}]
        for engine, tokens in zip(engines, found, strict=True):
            tokens.update({engine.add_request(prompt, TEN): [] for prompt in GOOD})
        while any(engine.has_work() for engine in engines):
            for engine, tokens in zip(engines, found, strict=True):
                for update in engine.step():
                    tokens[update.request_id].extend(update.token_ids)
        assert [list(tokens.values()) for tokens in found] == alone
        engines[0].close()
        assert [output.token_ids for output in engines[1].generate(GOOD, TEN)] == alone[1]


def test_instances_in_threads_of_their_own(tiny_dir: Callable[[str], Path]) -> None:
    """The forward context and the capture state belong to a thread: four engines start and answer at once."""
    answers: dict[str, list[list[int]]] = {}

    def serve(family: str, name: str) -> None:
        with LLM(str(tiny_dir(family)), **SETTINGS) as engine:
            answers[name] = [output.token_ids for output in engine.generate(GOOD * 3, TEN)]

    for family in TINY_FAMILIES:
        serve(family, family)
    threads = [threading.Thread(target=serve, args=(family, f"{family} again")) for family in TINY_FAMILIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for family in TINY_FAMILIES:
        assert answers[f"{family} again"] == answers[family]


def test_the_requests_record_is_left_to_the_engine(llm: LLM) -> None:
    """A list that the caller changes after the call is not the engine's list."""
    prompt = [5, 6, 7]
    name = llm.add_request(prompt, TEN)
    prompt.append(999)
    request: Request = llm._loop._scheduler.waiting[0]
    assert request.prompt_token_ids == [5, 6, 7]
    llm.abort(name)
    llm.step()


def test_threads_share_one_engine(llm: LLM) -> None:
    expected = llm.generate(["good"], SamplingParams(max_tokens=8))[0].token_ids
    found: list[object] = []

    def ask() -> None:
        for _ in range(10):
            found.append(llm.generate(["good"], SamplingParams(max_tokens=8))[0].token_ids)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 40


# --- qualification ----------------------------------------------------------------------------------


def test_qualify_leaves_answers_as_they_were(shared: LLMMaker) -> None:
    engine = shared("full_and_piecewise")
    before = [output.token_ids for output in engine.generate(GOOD, TEN)]
    told: list[Any] = []
    report = engine.qualify(on_key=told.append)
    assert report.passed and told == report.keys and len(report.keys) == engine.stats()["graphs"]["count"]
    assert [output.token_ids for output in engine.generate(GOOD, TEN)] == before


def test_qualify_needs_an_idle_engine(llm: LLM) -> None:
    name = llm.add_request([5], TEN)
    with pytest.raises(RuntimeStateError, match="in progress"):
        llm.qualify()
    llm.abort(name)
    while llm.has_work():
        llm.step()


def test_qualify_without_graphs_and_closed(tiny_dir: Callable[[str], Path]) -> None:
    engine = LLM(str(tiny_dir("llama")), mode="none", **SETTINGS)
    assert engine.qualify().keys == []
    engine.close()
    with pytest.raises(ClosedError):
        engine.qualify()


@pytest.mark.parametrize("overlap", [False, True])
def test_shadows_change_no_answer(
    tiny_dir: Callable[[str], Path], shared: LLMMaker, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShadowTurns, "is_due", lambda self, **_: self.is_waiting)
    sampled = SamplingParams(max_tokens=10, ignore_eos=True, temperature=1.0, seed=7)
    params = [TEN, sampled, TEN, sampled]
    expected = [output.token_ids for output in shared("auto").generate(GOOD, params)]
    with LLM(str(tiny_dir("llama")), overlap=overlap, shadow_every=2, **SETTINGS) as engine:
        assert [output.token_ids for output in engine.generate(GOOD, params)] == expected
        assert "QUARANTINED" not in engine.stats()["dispatch"]["by_reason"]
        assert engine.stats()["shadow"]["compared"] >= 4


@pytest.mark.parametrize("prompts", [b"x", {"prompt": "x"}])
def test_one_thing_that_is_no_prompt(llm: LLM, prompts: Any) -> None:
    (output,) = llm.generate(prompts, TEN)
    assert isinstance(output.error, RequestError) and "a prompt cannot be of type" in output.error.message


@pytest.mark.parametrize("conversations", [None, 3, "hello"])
def test_what_is_no_conversation(llm: LLM, conversations: Any) -> None:
    with pytest.raises(RequestError, match="a conversation cannot be of type"):
        llm.chat(conversations)


def test_a_request_id_is_a_text(llm: LLM) -> None:
    for bad in (["x"], 3):
        with pytest.raises(RequestError, match="a request id cannot be of type"):
            llm.add_request("a", request_id=bad)  # type: ignore[arg-type]
    assert not llm.has_work()


def test_a_config_where_a_model_is_expected() -> None:
    with pytest.raises(ConfigError, match="model is an EngineConfig") as caught:
        LLM(EngineConfig(load_format="dummy"))  # type: ignore[arg-type]
    assert "LLM(config=...)" in caught.value.fix


def test_a_config_of_another_type() -> None:
    with pytest.raises(ConfigError, match="config is a int"):
        LLM(config=3)  # type: ignore[arg-type]
