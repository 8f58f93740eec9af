"""Tokens on their way from a busy device, through memory that is used again."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.sampling import CopyRing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_copies_of_a_busy_device_are_read_in_turn() -> None:
    ring, tokens = CopyRing(), torch.zeros(64, dtype=torch.int64, device="cuda")
    copies = []
    for step in range(50):
        torch.cuda._sleep(200_000)  # the copies queue up behind this
        tokens.fill_(step)
        copies.append(ring.start(tokens))
        if step:  # one step late, as an engine reads
            copy = copies[step - 1]
            assert copy.read().tolist() == [step - 1] * 64
            ring.give_back(copy)
    assert len(set(map(id, copies))) == 2
