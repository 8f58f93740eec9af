"""What feeds a step, and what ends it."""

from __future__ import annotations

import torch

from ostinato.engine.layers import GreedyHead, feed_ids


def test_pending_tokens_are_fed() -> None:
    last_ids = torch.tensor([99, 11, -1, 13])
    fed = feed_ids(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 2, 1], dtype=torch.int32), last_ids)
    assert fed.tolist() == [5, 13, 0, 11], "a row without a token feeds a token that exists: its request has ended"


def test_the_greedy_head_writes_where_it_is_told() -> None:
    out = torch.zeros(3, dtype=torch.int64)
    logits = torch.tensor([[0.0, 2.0, 2.0], [float("nan"), 1.0, 0.0], [3.0, 1.0, 0.0]])
    GreedyHead(max_rows=3, device=torch.device("cpu"))(logits, out)
    assert out.tolist() == [1, -1, 0]
