"""The FlashInfer backend around a stand-in for its package: lists, plans, what may be frozen, and what is refused."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.engine.attention import AttentionShape, PlanningAttentionBackend, get_attention_backend
from ostinato.engine.attention.flashinfer.backend import FlashInferAttention
from ostinato.engine.attention.flashinfer.page_lists import PageLists
from ostinato.engine.attention.flashinfer.support import check_support, uses_tensor_cores
from ostinato.engine.attention.flashinfer.workspace import float_workspace_bytes, int_workspace_bytes
from ostinato.errors import (
    ConfigError,
    DeviceUnavailableError,
    FrozenValueError,
    JitInCaptureError,
    RuntimeStateError,
    UnknownNameError,
)
from ostinato.runtime.breaks import recording
from ostinato.runtime.keys import CaptureSupport

PAGE_SIZE = 4


def shape_of(**changes: Any) -> AttentionShape:
    settings: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "page_size": PAGE_SIZE,
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "max_num_reqs": 8,
        "max_num_tokens": 64,
        "max_model_len": 64,
    }
    return AttentionShape(**{**settings, **changes})


@pytest.fixture
def backend(fake_flashinfer: Any) -> FlashInferAttention:
    backend = FlashInferAttention()
    backend.reserve(shape_of())
    return backend


def plan(backend: FlashInferAttention, batch: Any, *, is_for_graph: bool) -> None:
    live = len(batch.query_lens)
    backend.plan_step(
        query_lens=batch.query_lens,
        seq_lens=batch.metadata.seq_lens.tolist()[:live],
        block_tables=batch.metadata.block_tables,
        graph_num_reqs=batch.metadata.num_reqs if is_for_graph else None,
    )


def attend(backend: FlashInferAttention, batch: Any) -> torch.Tensor:
    out = torch.full(batch.q.shape, float("nan"), dtype=batch.q.dtype)
    backend.write_kv(batch.k, batch.v, batch.cache, batch.metadata)
    backend.attend(batch.q, out, batch.cache, batch.metadata, batch.scale)
    return out


# --- lists ----------------------------------------------------------------------------------------------


def lists(**changes: Any) -> PageLists:
    return PageLists(**{"max_num_reqs": 5, "max_model_len": 20, "page_size": 4, "pin_memory": False, **changes})


def test_lists_of_a_padded_batch() -> None:
    found = lists()
    tables = torch.tensor([[7, 8, 9, 0, 0], [3, 0, 0, 0, 0], [5, 6, 0, 0, 0], [0] * 5, [0] * 5], dtype=torch.int32)
    assert found.fill([1, 1, 1], [9, 4, 5], tables, 5) == 8
    assert found.pages[:8].tolist() == [7, 8, 9, 3, 5, 6, 0, 0]
    assert found.page_start.tolist() == [0, 3, 4, 6, 7, 8]
    assert found.last_page_lens.tolist() == [1, 4, 1, 0, 0]
    assert found.query_start.tolist() == [0, 1, 2, 3, 3, 3]


def test_nothing_of_a_larger_batch_is_left() -> None:
    """PITFALL 14: stale tails."""
    found = lists()
    tables = torch.arange(1, 26, dtype=torch.int32).view(5, 5)
    assert found.fill([4] * 5, [20] * 5, tables, 5) == 25
    assert found.fill([2], [6], tables, 3) == 4
    assert found.pages[:4].tolist() == [1, 2, 0, 0]
    assert found.page_start[:4].tolist() == [0, 2, 3, 4] and found.last_page_lens[:3].tolist() == [2, 0, 0]
    assert found.query_start[:4].tolist() == [0, 2, 2, 2]


def test_lists_without_a_live_request() -> None:
    found = lists()
    assert found.fill([], [], torch.zeros((0, 0), dtype=torch.int32), 2) == 2
    assert found.page_start[:3].tolist() == [0, 1, 2] and found.last_page_lens[:2].tolist() == [0, 0]
    assert found.pages[:2].tolist() == [0, 0] and found.query_start[:3].tolist() == [0, 0, 0]


def test_lists_give_every_token_its_slot() -> None:
    rng = np.random.default_rng(0)
    found = lists(max_num_reqs=6, max_model_len=40)
    for _ in range(50):
        num_reqs = int(rng.integers(1, 7))
        seq_lens = rng.integers(1, 41, size=num_reqs).tolist()
        tables = torch.from_numpy(rng.integers(1, 99, size=(num_reqs, 12)).astype(np.int32))
        found.fill([1] * num_reqs, seq_lens, tables, num_reqs)
        for index, length in enumerate(seq_lens):
            first, last = found.page_start[index : index + 2].tolist()
            assert (last - first - 1) * 4 + int(found.last_page_lens[index]) == length
            assert found.pages[first:last].tolist() == tables[index, : last - first].tolist()


# --- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (9, 3), (4, 1)])
@pytest.mark.parametrize("padded", [0, 3])
def test_decode_of_a_graph(fake_flashinfer: Any, make_batch: Any, heads: tuple[int, int], padded: int) -> None:
    backend = FlashInferAttention()
    backend.reserve(shape_of(num_heads=heads[0], num_kv_heads=heads[1]))
    batch = make_batch(
        [1] * 3, [5, 8, 17], heads=heads, uniform=1, padded_reqs=padded, padded_rows=padded, in_graph=True
    )
    plan(backend, batch, is_for_graph=True)
    torch.testing.assert_close(attend(backend, batch), batch.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lens", [([6], [6]), ([5, 1, 3], [5, 9, 11]), ([1, 7], [1, 7]), ([1, 1], [3, 9])])
def test_other_steps(backend: FlashInferAttention, make_batch: Any, lens: tuple[list[int], list[int]]) -> None:
    batch = make_batch(*lens)
    plan(backend, batch, is_for_graph=False)
    torch.testing.assert_close(attend(backend, batch), batch.expected(), rtol=1e-5, atol=1e-5)


def test_the_scale_of_the_call_counts(backend: FlashInferAttention, make_batch: Any) -> None:
    batch = make_batch([1, 1], [6, 7], uniform=1, in_graph=True)
    batch.scale = 0.9
    plan(backend, batch, is_for_graph=True)
    torch.testing.assert_close(attend(backend, batch), batch.expected(), rtol=1e-5, atol=1e-5)


def test_each_plan_of_a_bucket_counts(backend: FlashInferAttention, make_batch: Any) -> None:
    """The first plan is FlashInfer's full one, later ones its fast one: both must reach the wrapper's buffers."""
    for contexts in ([5, 8, 17], [40, 1, 2], [3, 3, 3]):
        batch = make_batch([1] * 3, contexts, uniform=1, padded_reqs=1, padded_rows=1, in_graph=True)
        plan(backend, batch, is_for_graph=True)
        torch.testing.assert_close(attend(backend, batch), batch.expected(), rtol=1e-5, atol=1e-5)


def test_a_write_reaches_its_slots_alone(backend: FlashInferAttention, make_batch: Any) -> None:
    batch = make_batch([1, 1], [7, 4], uniform=1, padded_reqs=2, padded_rows=2, in_graph=True)
    before = batch.cache.key.flatten(0, 1).clone()
    backend.write_kv(batch.k, batch.v, batch.cache, batch.metadata)
    changed = (batch.cache.key.flatten(0, 1).view(torch.int32) != before.view(torch.int32)).flatten(1).any(1)
    assert set(changed.nonzero().flatten().tolist()) - {0} == set(batch.metadata.slot_mapping[:2].tolist())


# --- what is fixed --------------------------------------------------------------------------------------


def test_each_bucket_has_a_wrapper_whose_memory_stays(backend: FlashInferAttention, make_batch: Any) -> None:
    """PITFALLS 7 and 9: same buffers for every plan of a bucket, and one float workspace for all."""
    fake = sys.modules["flashinfer"]

    def addresses() -> list[tuple[int, ...]]:
        decodes = [wrapper for wrapper in fake.made if wrapper.is_cuda_graph_enabled]
        tensors = ("float_workspace", "int_workspace", "indptr", "indices", "last_page_len")
        return [tuple(getattr(wrapper, name).data_ptr() for name in tensors) for wrapper in decodes]

    for num_reqs in (1, 2, 4):
        plan(backend, make_batch([1] * num_reqs, [3] * num_reqs, uniform=1), is_for_graph=True)
    first = addresses()
    assert len(first) == 3 and len({row[0] for row in first}) == 1
    for column in (1, 2, 4):
        assert len({row[column] for row in first}) == 3, "buckets share work lists"
    for contexts in ([60, 2, 1, 9], [1] * 4):
        plan(backend, make_batch([1] * 4, contexts, uniform=1), is_for_graph=True)
    plan(backend, make_batch([30], [44]), is_for_graph=False)
    assert addresses() == first and len(fake.made) == 4
    assert all(wrapper.int_workspace.numel() < 1 << 20 for wrapper in fake.made), "8 MiB each is FlashInfer's own"


def test_a_plan_that_would_launch_something_else_is_refused(
    backend: FlashInferAttention, make_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PITFALL 10."""
    batch = make_batch([1, 1], [3, 5], uniform=1, in_graph=True)
    plan(backend, batch, is_for_graph=True)

    def plan_more_blocks(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        wrapper._plan_info = [99, *wrapper._plan_info[1:]]

    monkeypatch.setattr(sys.modules["flashinfer"], "fast_decode_plan", plan_more_blocks)
    with pytest.raises(FrozenValueError, match="another launch for 2 requests"):
        plan(backend, batch, is_for_graph=True)


def test_host_lists_are_rewritten_only_after_their_copies(
    backend: FlashInferAttention, make_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PITFALL 32: wait for the last plan's copies, then fill; record behind this plan's copies."""
    calls: list[str] = []

    class Event:
        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait")

    plans = backend._plans
    assert plans is not None
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(plans, "_is_cuda", True)
    fill, other_plan = plans._lists.fill, plans._other_wrapper.plan
    monkeypatch.setattr(plans._lists, "fill", lambda *a: (calls.append("fill"), fill(*a))[1])
    monkeypatch.setattr(plans._other_wrapper, "plan", lambda *a, **k: (calls.append("plan"), other_plan(*a, **k))[1])
    for _ in range(2):
        plan(backend, make_batch([3], [3]), is_for_graph=False)
    assert calls == ["fill", "plan", "record", "wait", "fill", "plan", "record"]


@pytest.mark.parametrize(
    ("heads", "expected"), [((32, 8), True), ((9, 3), False), ((14, 2), True), ((4, 4), False), ((16, 8), False)]
)
def test_which_kernel_decodes(heads: tuple[int, int], expected: bool) -> None:
    assert uses_tensor_cores(shape_of(num_heads=heads[0], num_kv_heads=heads[1])) is expected


@pytest.mark.parametrize("heads", [(32, 8), (9, 3), (14, 2), (4, 4), (64, 1)])
@pytest.mark.parametrize("max_num_reqs", [1, 16, 256, 1024])
def test_workspaces_hold_the_largest_plan(heads: tuple[int, int], max_num_reqs: int) -> None:
    """Against the planners' arithmetic, walked bucket by bucket."""
    num_heads, num_kv_heads = heads
    group, num_sms = num_heads // num_kv_heads, 132
    shape = shape_of(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=128, max_num_reqs=max_num_reqs)
    float_bytes = float_workspace_bytes(shape, num_sms=num_sms)
    for num_reqs in range(1, max_num_reqs + 1, 7):
        if uses_tensor_cores(shape):
            tile = 16 if group <= 16 else 64 if group <= 64 else 128
            blocks = max(2 * num_sms // num_kv_heads, -(-num_reqs * group // tile) + num_reqs - 1)
            needed = num_heads * blocks * tile * (128 + 1) * 4
        else:
            blocks = 16 * num_sms // num_kv_heads
            needed = num_heads * blocks * (128 + 1) * 4 if num_reqs < blocks else 0
        assert needed + 64 <= float_bytes
        lists = 13 * blocks + 4 * (2 * num_reqs + 8)
        assert lists + 256 <= int_workspace_bytes(shape, num_reqs=num_reqs, num_tokens=num_reqs, num_sms=num_sms)
    assert num_heads * (2 * num_sms // num_kv_heads) * 128 * 129 * 4 + 64 <= float_bytes  # a split prefill


# --- what is refused ------------------------------------------------------------------------------------


def test_attention_without_its_plan_is_refused(backend: FlashInferAttention, make_batch: Any) -> None:
    batch = make_batch([1, 1], [3, 5], uniform=1, in_graph=True)
    with pytest.raises(RuntimeStateError, match="not planned"):
        attend(backend, batch)
    plan(backend, batch, is_for_graph=True)
    attend(backend, batch)
    for other in (make_batch([1], [3], uniform=1, in_graph=True), make_batch([1, 1], [3, 5])):
        with pytest.raises(RuntimeStateError, match="not planned"):
            attend(backend, other)


def test_no_plan_inside_a_capture(backend: FlashInferAttention, make_batch: Any) -> None:
    with recording(), pytest.raises(RuntimeStateError, match="inside a capture"):
        plan(backend, make_batch([1], [3], uniform=1, in_graph=True), is_for_graph=True)


def test_no_memory_no_plan(fake_flashinfer: Any) -> None:
    with pytest.raises(RuntimeStateError, match="reserve"):
        FlashInferAttention().plan_step(query_lens=(), seq_lens=(), block_tables=torch.zeros(0, 0), graph_num_reqs=1)


def test_kernels_are_warm_before_a_capture(fake_flashinfer: Any, make_batch: Any) -> None:
    """PITFALL 18. The head size is this test's own, since marks are remembered for the process."""
    shape = shape_of(head_dim=40)
    cold, warm = FlashInferAttention(), FlashInferAttention()
    batch = make_batch([1], [3], uniform=1, in_graph=True, head_dim=40)
    cold.reserve(shape)
    plan(cold, batch, is_for_graph=True)
    with recording(), pytest.raises(JitInCaptureError, match="flashinfer"):
        attend(cold, batch)
    warm.warm_up(shape)
    assert {wrapper.num_runs > 0 for wrapper in fake_flashinfer.made[2:]} == {True}
    plan(warm, batch, is_for_graph=True)
    with recording():
        attend(warm, batch)


def test_a_failed_build_says_what_to_do(backend: FlashInferAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Could not find nvcc")

    wrapper = type(sys.modules["flashinfer"].made[0])
    monkeypatch.setattr(wrapper, "plan", no_compiler)
    with pytest.raises(DeviceUnavailableError, match=r"nvcc.*CUDA_HOME"):
        backend.warm_up(shape_of())


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"dtype": torch.float32, "head_dim": 64}, "float32"), ({"dtype": torch.bfloat16, "head_dim": 96}, "heads of 96")],
)
def test_what_the_kernels_cannot_do_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_support(shape_of(**changes))
    check_support(shape_of(dtype=torch.bfloat16, head_dim=128))


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(DeviceUnavailableError, match=r"8\.0"):
        check_support(shape_of(dtype=torch.float16, head_dim=64, device=torch.device("cuda")))


def test_the_registry_knows_it(fake_flashinfer: Any) -> None:
    backend = get_attention_backend("flashinfer", "cuda")
    assert backend.name == "flashinfer" and isinstance(backend, PlanningAttentionBackend)
    assert backend.capture_support is CaptureSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert not isinstance(get_attention_backend("torch", "cpu"), PlanningAttentionBackend)
    with pytest.raises(DeviceUnavailableError, match="does not run on cpu"):
        get_attention_backend("flashinfer", "cpu")
    with pytest.raises(UnknownNameError, match=r"did you mean 'flashinfer'"):
        get_attention_backend("flashinfr", "cuda")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.engine.attention.registry.find_spec", lambda name: None)
    with pytest.raises(DeviceUnavailableError, match=r"needs the flashinfer package.*ostinato\[cuda\]"):
        get_attention_backend("flashinfer", "cuda")
