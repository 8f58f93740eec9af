"""`fill_batch` writes every row of every slot: live rows from the batch, tails that are safe to execute."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.execution.batch_slots import batch_slots, fill_batch
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.runtime import Tail

PAGE_SIZE, WIDTH, STALE = 4, 5, 77


def batch() -> ScheduledBatch:
    decode = Request(
        request_id="a", prompt_token_ids=[10, 11, 12, 13], output_token_ids=[14], num_computed_tokens=4, pages=[9, 2]
    )
    chunk = Request(request_id="b", prompt_token_ids=list(range(20, 30)), num_computed_tokens=3, pages=[5, 7])
    return ScheduledBatch((ScheduledRequest(decode, 4, 1, True, True), ScheduledRequest(chunk, 3, 4, False, False)))


def stale_host(num_tokens: int, num_reqs: int) -> dict[str, torch.Tensor]:
    """Host tensors in which a larger step has left something in every row."""
    slots = batch_slots(vocab_size=100, max_model_len=WIDTH * PAGE_SIZE, num_pages=11, page_size=PAGE_SIZE)
    sizes = {"num_tokens": num_tokens, "num_reqs": num_reqs}
    return {
        name: torch.full([slot.rows(sizes) if d is None else d for d in slot.shape], STALE, dtype=slot.dtype)
        for name, slot in slots.items()
    }


def test_live_rows_and_tails() -> None:
    host = stale_host(8, 4)
    fill_batch(host, batch(), page_size=PAGE_SIZE)
    assert {name: tensor.tolist() for name, tensor in host.items()} == {
        "input_ids": [14, 23, 24, 25, 26, 0, 0, 0],
        "positions": [4, 3, 4, 5, 6, 0, 0, 0],
        "slot_mapping": [2 * 4, 5 * 4 + 3, 7 * 4, 7 * 4 + 1, 7 * 4 + 2, 0, 0, 0],
        "block_tables": [[9, 2, 0, 0, 0], [5, 7, 0, 0, 0], [0] * 5, [0] * 5],
        "seq_lens": [5, 7, 0, 0],
        "query_start": [0, 1, 5, 5, 5],
        "sampled_rows": [0, 4, 0, 0],
    }


def test_exact_sizes_have_no_tail() -> None:
    host = stale_host(5, 2)
    fill_batch(host, batch(), page_size=PAGE_SIZE)
    assert host["query_start"].tolist() == [0, 1, 5]
    assert all((tensor != STALE).all() for tensor in host.values())


@pytest.mark.parametrize("name", ["input_ids", "positions", "slot_mapping", "block_tables"])
def test_index_slots_know_their_range(name: str) -> None:
    slot = batch_slots(vocab_size=100, max_model_len=20, num_pages=11, page_size=4)[name]
    assert slot.valid_range is not None and slot.tail is Tail.ZERO


def test_the_declaration_is_in_the_order_of_the_forward() -> None:
    import inspect

    from ostinato.engine.execution import Executor

    slots = batch_slots(vocab_size=100, max_model_len=20, num_pages=11, page_size=4)
    assert list(slots) == list(inspect.signature(Executor.forward).parameters)[1:]
