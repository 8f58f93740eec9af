"""The torch backend against dense attention over the full histories, with poison wherever nobody may read."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.attention.torch_backend import TorchAttention
from ostinato.errors import RuntimeStateError
from ostinato.runtime.keys import CaptureSupport


def run(batch):
    backend = TorchAttention()
    out = torch.full(batch.q.shape, float("nan"), dtype=batch.q.dtype)
    backend.write_kv(batch.k, batch.v, batch.cache, batch.metadata)
    backend.attend(batch.q, out, batch.cache, batch.metadata, batch.scale)
    return out


def check(batch):
    out = run(batch)
    torch.testing.assert_close(out, batch.expected(), rtol=1e-5, atol=1e-5)
    row = 0
    keys, values = batch.stored(batch.cache.key), batch.stored(batch.cache.value)
    for request, ((old_k, old_v), length) in enumerate(zip(batch.histories, batch.query_lens, strict=True)):
        assert torch.equal(keys[request], torch.cat((old_k, batch.k[row : row + length])))
        assert torch.equal(values[request], torch.cat((old_v, batch.v[row : row + length])))
        row += length


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (9, 3), (4, 1)])
@pytest.mark.parametrize("uniform", [1, 3])
def test_uniform_decode(make_batch, heads, uniform):
    check(make_batch([uniform] * 3, [5, 8, 17], heads=heads, uniform=uniform, in_graph=True))


@pytest.mark.parametrize("uniform", [1, 2])
def test_padded_requests_give_zeros_and_harm_nobody(make_batch, uniform):
    batch = make_batch([uniform] * 2, [7, 12], uniform=uniform, padded_reqs=3, padded_rows=3 * uniform, in_graph=True)
    check(batch)
    assert not batch.cache.key[0].isnan().any(), "a padded row's NaN may not stay in the null page"


@pytest.mark.parametrize("lens", [([6], [6]), ([5, 1, 3], [5, 9, 11]), ([1, 7], [1, 7]), ([4], [13])])
def test_prefill_chunks_and_mixed(make_batch, lens):
    check(make_batch(*lens))


def test_a_single_token_prompt_is_prefill_by_its_metadata(make_batch):
    check(make_batch([1, 1], [1, 4]))


def test_mixed_batches_with_padding_give_zeros_there(make_batch):
    check(make_batch([3, 1], [3, 6], padded_reqs=2, padded_rows=4))


def test_mixed_inside_a_full_graph_is_refused(make_batch):
    with pytest.raises(RuntimeStateError, match="host"):
        run(make_batch([2, 1], [2, 3], in_graph=True))


def test_the_same_batch_gives_the_same_bits(make_batch):
    first, second = (run(make_batch([1] * 4, [9, 3, 14, 1], uniform=1)) for _ in range(2))
    assert torch.equal(first, second)


def test_uniform_decode_agrees_with_the_request_loop(make_batch):
    uniform = run(make_batch([1] * 3, [9, 3, 14], uniform=1))
    loop = run(make_batch([1] * 3, [9, 3, 14]))
    torch.testing.assert_close(uniform, loop, rtol=1e-5, atol=1e-6)


def test_states_its_capture_support():
    assert TorchAttention.capture_support is CaptureSupport.UNIFORM_BATCH
