"""One key on made-up inputs: what stands in the buffers, what is learned, what is refused."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import InputSpecError
from ostinato.runtime import GraphKey, RuntimeMode
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, BridgePool, CallLayout
from ostinato.runtime.capture import select_backend
from ostinato.runtime.keys import Compiler, Partition
from ostinato.runtime.runners import Delivery, MadeUpRuns, WrappedCallable, make_runners


def key(num_tokens: int) -> GraphKey:
    return GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=num_tokens)


def runs_of(fn, *, prepare=None, num_warm_ups=1) -> MadeUpRuns:
    layout = CallLayout.from_example(fn, (torch.ones(4, 2),), {})
    device = torch.device("cpu")
    wrapped = WrappedCallable(fn, layout=layout, max_sizes={NUM_TOKENS: 4, NUM_REQS: 4}, device=device)
    runners = make_runners(
        select_backend(device),
        partition=Partition.BREAKABLE,
        compiler=Compiler.NONE,
        compile_max_tokens=None,
        allow_unbroken_attention=False,
        owns_arguments=True,
        bridges=BridgePool(),
    )
    delivery = Delivery(copies=True, arena=wrapped.buffers.arena)
    return MadeUpRuns(wrapped, runners, delivery=delivery, num_warm_ups=num_warm_ups, prepare=prepare)


def test_rows_are_safe_and_metadata_is_built_for_them():
    seen, told = [], []

    def prepare(key):
        told.append((key.num_tokens, runs.wrapped.buffers.arena.any().item()))

    runs = runs_of(lambda x: seen.append(x.clone()) or x * 2, prepare=prepare)
    runs.wrapped.buffers.arena.fill_(255)
    runs.warm_up(key(2))
    assert told == [(2, False)], "after the buffers were cleared"
    assert [tuple(x.shape) for x in seen] == [(2, 2)] and not seen[0].any()


def test_each_key_runs_as_often_as_it_takes_and_one_bucket_has_a_witness():
    sizes, done = [], []
    runs = runs_of(lambda x: sizes.append(len(x)) or x * 2, num_warm_ups=2)
    runs.warm_up_all([key(4), key(2)], on_key=lambda key: done.append(key.num_tokens))
    assert sizes == [4, 2, 4, 2] and done == [4, 2]
    sizes.clear()
    runs.warm_up_all([key(4)], on_key=None)
    assert sizes == [4, 3, 4, 3]
    sizes.clear()
    prepared = runs_of(lambda x: sizes.append(len(x)) or x * 2, prepare=lambda key: None)
    prepared.warm_up_all([key(4)], on_key=None)
    assert sizes == [4], "no hook makes metadata for a size that is no key's"


def test_a_callable_that_writes_into_its_arguments_is_refused():
    with pytest.raises(InputSpecError, match="writes into its arguments"):
        runs_of(lambda x: x.add_(1)).warm_up(key(4))


def test_a_capture_clears_the_buffers_and_one_as_is_does_not():
    found = []
    runs = runs_of(lambda x: x * 2, prepare=lambda key: found.append("prepared"))
    backend = runs.runners[RuntimeMode.FULL]._backend  # type: ignore[attr-defined]
    runs.warm_up(key(2))
    found.clear()
    view = runs.wrapped.buffers.views(runs.wrapped.key_sizes(key(2)))["x"]
    with backend.phase():
        view.fill_(3)
        runs.capture_as_is(key(2)).close()
        assert view.eq(3).all() and found == []
        runs.capture(key(2)).close()
        assert not view.any() and found == ["prepared"]
