"""`BatchWriter` writes every row of every slot: live rows from the batch, tails that are safe to execute."""

from __future__ import annotations

import pytest
import torch

from ostinato.engine.execution.batch_slots import batch_slots
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.request import Request
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest
from ostinato.errors import PageIntegrityError
from ostinato.runtime import Slot, Tail

PAGE_SIZE, WIDTH, STALE = 4, 5, 77


def writer() -> BatchWriter:
    return BatchWriter(max_num_reqs=4, max_model_len=WIDTH * PAGE_SIZE, page_size=PAGE_SIZE)


def batch() -> ScheduledBatch:
    decode = Request(
        request_id="a", prompt_token_ids=[10, 11, 12, 13], output_token_ids=[14], num_computed_tokens=4, pages=[9, 2]
    )
    chunk = Request(request_id="b", prompt_token_ids=list(range(20, 30)), num_computed_tokens=3, pages=[5, 7])
    return ScheduledBatch((ScheduledRequest(decode, 4, 1, True, True), ScheduledRequest(chunk, 3, 4, False, False)))


def declared(max_model_len: int = 20) -> dict[str, Slot]:
    return batch_slots(vocab_size=100, max_model_len=max_model_len, max_num_reqs=4, num_pages=11, page_size=PAGE_SIZE)


def stale_host(num_tokens: int, num_reqs: int) -> dict[str, torch.Tensor]:
    """Host tensors in which a larger step has left something in every row."""
    slots = batch_slots(
        vocab_size=100, max_model_len=WIDTH * PAGE_SIZE, max_num_reqs=4, num_pages=11, page_size=PAGE_SIZE
    )
    sizes = {"num_tokens": num_tokens, "num_reqs": num_reqs}
    return {
        name: torch.full([slot.rows(sizes) if d is None else d for d in slot.shape], STALE, dtype=slot.dtype)
        for name, slot in slots.items()
    }


def test_live_rows_and_tails() -> None:
    host = stale_host(8, 4)
    writer().write(host, batch())
    assert {name: tensor.tolist() for name, tensor in host.items()} == {
        "input_ids": [14, 23, 24, 25, 26, 0, 0, 0],
        "feed_rows": [0] * 8,
        "positions": [4, 3, 4, 5, 6, 0, 0, 0],
        "slot_mapping": [2 * 4, 5 * 4 + 3, 7 * 4, 7 * 4 + 1, 7 * 4 + 2, 0, 0, 0],
        "block_tables": [[9, 2, 0, 0, 0], [5, 7, 0, 0, 0], [0] * 5, [0] * 5],
        "seq_lens": [5, 7, 0, 0],
        "query_start": [0, 1, 5, 5, 5],
        "sampled_rows": [0, 4, 0, 0],
    }


def test_exact_sizes_have_no_tail() -> None:
    host = stale_host(5, 2)
    writer().write(host, batch())
    assert host["query_start"].tolist() == [0, 1, 5]
    assert all((tensor != STALE).all() for tensor in host.values())


@pytest.mark.parametrize("name", ["input_ids", "feed_rows", "positions", "slot_mapping", "block_tables"])
def test_index_slots_know_their_range(name: str) -> None:
    slot = declared()[name]
    assert slot.valid_range is not None and slot.tail is Tail.ZERO


def test_the_declaration_is_in_the_order_of_the_forward() -> None:
    import inspect

    from ostinato.engine.execution import Executor

    slots = declared()
    assert list(slots) == list(inspect.signature(Executor.forward).parameters)[1:]


# --- what it remembers between steps ------------------------------------------------------------------


def decode_batch(*requests: Request) -> ScheduledBatch:
    return ScheduledBatch(tuple(ScheduledRequest(r, r.num_computed_tokens, 1, True, True) for r in requests))


def decoding(name: str, pages: list[int], *, computed: int, pending: int = 0) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1] * computed,
        output_token_ids=[50] * (1 - pending),
        num_pending_tokens=pending,
        num_computed_tokens=computed,
        pages=pages,
    )


def test_a_pending_token_is_fed_from_its_row_of_the_step_before() -> None:
    one, two = decoding("one", [1, 2], computed=5), decoding("two", [3, 4], computed=6)
    memory, host = writer(), stale_host(4, 4)
    memory.write(host, decode_batch(one, two))
    assert host["feed_rows"].tolist() == [0] * 4 and host["input_ids"].tolist() == [50, 50, 0, 0]
    for request in (one, two):
        request.num_computed_tokens += 1
        request.num_pending_tokens = 1
    memory.write(host, decode_batch(two, one))
    assert host["feed_rows"].tolist() == [2, 1, 0, 0], "row r of the step before is 1 + r"
    assert host["input_ids"].tolist() == [0] * 4
    assert host["positions"].tolist() == [7, 6, 0, 0]


def test_pages_follow_growth_and_preemption() -> None:
    request = decoding("a", [1], computed=3)
    memory, host = writer(), stale_host(1, 1)
    memory.write(host, decode_batch(request))
    request.pages.append(6)
    request.num_computed_tokens = 4
    memory.write(host, decode_batch(request))
    assert host["block_tables"][0].tolist() == [1, 6, 0, 0, 0] and host["slot_mapping"].tolist() == [6 * PAGE_SIZE]
    request.pages, request.num_preemptions = [8, 9], 1  # as many pages, but others
    memory.write(host, decode_batch(request))
    assert host["block_tables"][0].tolist() == [8, 9, 0, 0, 0] and host["slot_mapping"].tolist() == [9 * PAGE_SIZE]


def test_rows_are_given_back_when_others_need_them() -> None:
    memory, host = writer(), stale_host(4, 4)
    for generation in range(5):
        requests = [decoding(f"{generation}-{i}", [1 + i, 5 + i], computed=4 + i % 2) for i in range(4)]
        memory.write(host, decode_batch(*requests))
        assert host["block_tables"][:, :2].tolist() == [[1 + i, 5 + i] for i in range(4)]


def test_a_token_without_a_page_is_an_error() -> None:
    with pytest.raises(PageIntegrityError, match="token 8 has no slot"):
        writer().write(stale_host(1, 1), decode_batch(decoding("a", [1, 2], computed=8)))
