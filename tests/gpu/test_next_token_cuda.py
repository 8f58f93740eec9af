"""The two ends of a step that keep tokens on the device: the greedy choice, and feeding it to the next step."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

from ostinato.engine.layers import SamplingHead, feed_ids
from ostinato.engine.sampling import NUM_SETTINGS, allocate_counts, choose_greedy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="no triton: the torch form is tested on the CPU"),
]
DEVICE = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "vocab"), [(1, 128256), (1, 7), (3, 1025), (29, 49152), (256, 128256)])
def test_greedy_choices_are_those_of_torch(num_rows: int, vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(num_rows, vocab, device=DEVICE).to(dtype)
    logits[0, vocab // 2] = logits[0].max()  # a tie: the lowest index wins
    if num_rows > 2:
        logits[1, vocab - 1] = math.nan
        logits[2] = -math.inf
    head = SamplingHead(max_rows=num_rows, device=DEVICE)
    settings = torch.zeros(num_rows, NUM_SETTINGS, dtype=torch.float64, device=DEVICE)
    count_rows = torch.zeros(num_rows, dtype=torch.int64, device=DEVICE)
    counts = allocate_counts(0, vocab, DEVICE)
    got = torch.full((num_rows,), 77, dtype=torch.int64, device=DEVICE)
    expected = torch.empty(num_rows, dtype=torch.int64)
    choose_greedy(logits.cpu(), expected)
    for _ in range(3):  # the scratch memory is as it was
        head(logits, settings, count_rows, counts, got)
        assert got.tolist() == expected.tolist()


def test_pending_tokens_are_fed() -> None:
    last_ids = torch.tensor([0, 11, -1, 13], device=DEVICE)
    input_ids = torch.tensor([5, 6, 7, 8, 9], device=DEVICE)
    feed_rows = torch.tensor([0, 3, 2, 1, 0], dtype=torch.int32, device=DEVICE)
    assert feed_ids(input_ids, feed_rows, last_ids).tolist() == [5, 13, 0, 11, 9]
    assert feed_ids(input_ids.cpu(), feed_rows.cpu(), last_ids.cpu()).tolist() == [5, 13, 0, 11, 9]
