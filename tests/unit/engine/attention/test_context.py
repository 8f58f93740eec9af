"""The forward context and the calls that look it up."""

from __future__ import annotations

import threading

import pytest
import torch

from ostinato.engine.attention import (
    ForwardContext,
    get_attention_backend,
    get_forward_context,
    paged_attention,
    set_forward_context,
)
from ostinato.errors import DeviceUnavailableError, RuntimeStateError, UnknownNameError


def context_of(batch):
    return ForwardContext(batch.metadata, [batch.cache], get_attention_backend("torch", "cpu"))


def test_no_context_is_an_error():
    with pytest.raises(RuntimeStateError, match="forward context"):
        get_forward_context()


def test_contexts_nest_and_end_also_after_an_error(make_batch):
    outer, inner = (context_of(make_batch([1], [2])) for _ in range(2))
    with set_forward_context(outer):
        with pytest.raises(ValueError, match="boom"), set_forward_context(inner):
            assert get_forward_context() is inner
            raise ValueError("boom")
        assert get_forward_context() is outer
    with pytest.raises(RuntimeStateError):
        get_forward_context()


def test_each_thread_has_its_own(make_batch):
    failures = []

    def look():
        try:
            get_forward_context()
        except RuntimeStateError as error:
            failures.append(error)

    with set_forward_context(context_of(make_batch([1], [2]))):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(failures) == 1


def test_paged_attention_uses_live_rows_only_and_zeroes_the_others(make_batch):
    batch = make_batch([3, 1], [3, 6], padded_rows=4)
    batch.metadata.num_tokens = 4  # as in a break: the bucket's padding is not attention's business
    batch.metadata.slot_mapping[4:] = 10**9  # would crash if it were used
    out = torch.full(batch.q.shape, float("nan"))
    with set_forward_context(context_of(batch)):
        paged_attention(batch.q, batch.k, batch.v, out, 0, batch.scale)
    torch.testing.assert_close(out, batch.expected(), rtol=1e-5, atol=1e-5)


def test_paged_attention_is_a_break_that_mutates_out():
    point = paged_attention.__ostinato_break__
    assert point.mutates == ("out",)


def test_unknown_backends_are_named():
    with pytest.raises(UnknownNameError, match=r"tritn.*did you mean 'triton'"):
        get_attention_backend("tritn", "cuda")


def test_auto_is_torch_on_the_cpu():
    assert get_attention_backend("auto", "cpu").name == "torch"


def test_triton_on_the_cpu_is_refused():
    with pytest.raises(DeviceUnavailableError, match="cpu"):
        get_attention_backend("triton", "cpu")
