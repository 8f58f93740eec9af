"""What feeds a step."""

from __future__ import annotations

import torch

from ostinato.engine.layers import feed_ids


def test_pending_tokens_are_fed() -> None:
    last_ids = torch.tensor([99, 11, -1, 13])
    fed = feed_ids(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 2, 1], dtype=torch.int32), last_ids)
    assert fed.tolist() == [5, 13, 0, 11], "a row without a token feeds a token that exists: its request has ended"
