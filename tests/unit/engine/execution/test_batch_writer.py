"""`BatchWriter` writes every row of every slot: live rows from the batch, tails that are safe to execute."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from ostinato.engine.execution.batch_slots import batch_slots
from ostinato.engine.execution.batch_writer import BatchWriter
from ostinato.engine.paging import PageAllocator
from ostinato.engine.request import FinishReason, Request, SamplingParams, natural_finish
from ostinato.engine.sampling import NUM_SETTINGS, Setting
from ostinato.engine.sampling.settings import settings_of
from ostinato.engine.scheduler import ScheduledBatch, ScheduledRequest, Scheduler
from ostinato.errors import PageIntegrityError
from ostinato.runtime import HostSlots, Slot, Tail
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, Staging, StaticBuffers

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


def stale_host(num_tokens: int, num_reqs: int) -> HostSlots:
    """Host tensors in which a larger step has left something in every row."""
    slots = batch_slots(
        vocab_size=100, max_model_len=WIDTH * PAGE_SIZE, max_num_reqs=4, num_pages=11, page_size=PAGE_SIZE
    )
    sizes = {"num_tokens": num_tokens, "num_reqs": num_reqs}
    return HostSlots(
        {
            name: torch.full([slot.rows(sizes) if d is None else d for d in slot.shape], STALE, dtype=slot.dtype)
            for name, slot in slots.items()
        }
    )


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
        "settings": [[0.0] * NUM_SETTINGS] * 4,
        "count_rows": [0] * 4,
    }


def test_exact_sizes_have_no_tail() -> None:
    host = stale_host(5, 2)
    writer().write(host, batch())
    assert host["query_start"].tolist() == [0, 1, 5]
    assert all((tensor != STALE).all() for tensor in host.values())


@pytest.mark.parametrize("name", ["input_ids", "feed_rows", "positions", "slot_mapping", "block_tables", "count_rows"])
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


def decoding(name: str, pages: list[int], *, computed: int, pending: int = 0, **params: Any) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1] * computed,
        output_token_ids=[50] * (1 - pending),
        num_pending_tokens=pending,
        num_computed_tokens=computed,
        pages=pages,
        params=SamplingParams(**params),
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


@pytest.mark.parametrize("pending", [0, 1])
def test_a_chunk_reaches_from_the_prompt_into_the_output(pending: int) -> None:
    """As after a preemption; a token that is still on the device follows what the host knows."""
    request = Request(
        request_id="back",
        prompt_token_ids=[10, 11, 12, 13, 14, 15],
        output_token_ids=[50, 51],
        num_computed_tokens=4,
        pages=[1, 2, 3],
    )
    other = Request(request_id="new", prompt_token_ids=[20, 21], pages=[4])
    memory, host = writer(), stale_host(8, 2)
    memory.write(stale_host(4, 1), ScheduledBatch((ScheduledRequest(request, 4, 4, True, False),)))
    request.num_pending_tokens = pending
    items = ScheduledRequest(request, 4, 4 + pending, True, False), ScheduledRequest(other, 0, 2, True, False)
    memory.write(host, ScheduledBatch(items))
    assert host["input_ids"].tolist() == [14, 15, 50, 51, *[0] * pending, 20, 21, *[0] * (2 - pending)]
    assert host["feed_rows"].tolist() == [*[0] * 4, *[1] * pending, *[0] * (4 - pending)]


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


# --- how requests are sampled -------------------------------------------------------------------------


def launched(*requests: Request) -> None:
    """What the scheduler notes once a step is launched."""
    for request in requests:
        request.num_computed_tokens += 1
        request.num_pending_tokens += 1


def read(*requests: Request, token: int = 7) -> None:
    for request in requests:
        request.num_pending_tokens -= 1
        request.output_token_ids.append(token)


def test_settings_stand_in_the_rows_of_those_that_sample() -> None:
    drawn = decoding("drawn", [1, 2], computed=5, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=4)
    chunk = Request(
        request_id="chunk", prompt_token_ids=list(range(9)), pages=[5], params=SamplingParams(temperature=1.0)
    )
    plain = decoding("plain", [3, 4], computed=6)
    items = [ScheduledRequest(r, r.num_computed_tokens, 1, True, True) for r in (plain, drawn)]
    host = stale_host(6, 4)
    writer().write(host, ScheduledBatch((*items, ScheduledRequest(chunk, 0, 4, False, False))))
    settings = host["settings"].tolist()
    assert settings[0] == settings[2] == settings[3] == [0.0] * NUM_SETTINGS
    expected = list(settings_of(drawn.params))
    assert settings[1][: Setting.UNIFORM] == expected[: Setting.UNIFORM]
    assert 0 < settings[1][Setting.UNIFORM] < 1
    assert host["count_rows"].tolist() == [0] * 4


def test_seeded_numbers_follow_the_output_position_pending_or_not() -> None:
    request = decoding("a", [1, 2], computed=3, temperature=1.0, seed=4)
    memory, host, found = writer(), stale_host(1, 1), []
    for is_read in (True, False, True):
        memory.write(host, decode_batch(request))
        found.append(host["settings"][0, Setting.UNIFORM].item())
        launched(request)
        if is_read:
            read(request)
    again = decoding("b", [1, 2], computed=3, temperature=1.0, seed=4)
    assert len(set(found)) == 3
    for position, number in enumerate(found):
        again.output_token_ids = [7] * (1 + position)
        again.num_computed_tokens = 3 + position
        writer().write(host, decode_batch(again))
        assert host["settings"][0, Setting.UNIFORM].item() == number


def test_unseeded_numbers_come_from_the_writers_stream() -> None:
    requests = [decoding(str(i), [1 + i, 5], computed=3, temperature=1.0) for i in range(3)]
    streams = []
    for seed in (0, 0, 1):
        memory = BatchWriter(max_num_reqs=4, max_model_len=WIDTH * PAGE_SIZE, page_size=PAGE_SIZE, seed=seed)
        host = stale_host(4, 4)
        found: list[float] = []
        for _ in range(3):
            memory.write(host, decode_batch(*requests))
            found += host["settings"][:3, Setting.UNIFORM].tolist()
        streams.append(found)
    assert streams[0] == streams[1] != streams[2]
    assert len(set(streams[0])) == 9


def rows_to_build(memory: BatchWriter, host: dict[str, torch.Tensor], *requests: Request) -> list[str]:
    """Names of the requests whose counts are to be built; their rows are those that the graph is told of."""
    built = memory.write(host, decode_batch(*requests))
    rows = dict(zip(requests, host["count_rows"].tolist(), strict=False))
    assert all(rows[each.request] == each.row > 0 for each in built)
    assert len({row for row in rows.values() if row}) == sum(r.params.has_penalties for r in requests)
    return [each.request.request_id for each in built]


def test_counts_are_built_when_a_request_enters_and_then_never() -> None:
    one = decoding("one", [1, 2], computed=3, presence_penalty=1.0)
    two = decoding("two", [3, 4], computed=4)
    memory, host = writer(), stale_host(2, 2)
    assert rows_to_build(memory, host, two, one) == ["one"]
    launched(one, two)
    assert rows_to_build(memory, host, one, two) == []  # its token is pending, and counted
    launched(one, two)
    read(one, two)
    assert rows_to_build(memory, host, two, one) == []
    assert host["count_rows"].tolist()[0] == 0


def test_counts_outlive_a_preemption_but_not_the_loss_of_their_row() -> None:
    request = decoding("a", [1], computed=2, presence_penalty=1.0)
    memory, host = writer(), stale_host(4, 4)
    assert rows_to_build(memory, host, request) == ["a"]
    launched(request)
    read(request)
    request.pages, request.num_preemptions = [8], 1
    assert rows_to_build(memory, host, request) == []
    launched(request)
    read(request)
    others = [decoding(str(i), [2 + i], computed=2, presence_penalty=1.0) for i in range(4)]
    assert rows_to_build(memory, host, *others) == ["0", "1", "2", "3"], "each starts clean, the reused row too"
    request.pages.append(9)
    assert rows_to_build(memory, host, request) == ["a"]


def test_a_step_that_is_written_again_builds_its_counts_anew() -> None:
    """Nobody knows whether the first launch, interrupted, has counted its token."""
    request = decoding("a", [1, 2], computed=2, presence_penalty=1.0)
    memory, host = writer(), stale_host(1, 1)
    assert [rows_to_build(memory, host, request) for _ in range(3)] == [["a"]] * 3
    launched(request)
    assert rows_to_build(memory, host, request) == []
    (built,) = memory.write(host, decode_batch(request))  # interrupted again, its last token still pending
    assert built.fed_from == 1 and request.num_pending_tokens == 1


def test_chunks_in_the_middle_of_a_prompt_count_nothing() -> None:
    params = SamplingParams(presence_penalty=1.0)
    request = Request(request_id="a", prompt_token_ids=list(range(10)), pages=[1, 2, 3], params=params)
    memory, host = writer(), stale_host(5, 1)
    assert memory.write(host, ScheduledBatch((ScheduledRequest(request, 0, 5, False, False),))) == []
    assert host["count_rows"].tolist() == [0]
    request.num_computed_tokens = 5
    (built,) = memory.write(host, ScheduledBatch((ScheduledRequest(request, 5, 5, True, False),)))
    assert built.row == host["count_rows"].item() > 0 and built.fed_from == 0


# --- decodes as columns -------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("num_pages", [11, 41], ids=["few pages", "pages for all"])
def test_columns_write_what_their_items_would(overlap: bool, num_pages: int) -> None:
    """Random traffic of a scheduler, written from the batches and from their items one by one."""
    rng = random.Random(num_pages + overlap)
    limits = {"max_num_reqs": 4, "max_num_batched_tokens": 8, "max_model_len": WIDTH * PAGE_SIZE}
    scheduler = Scheduler(allocator=PageAllocator(num_pages, PAGE_SIZE), **limits)  # type: ignore[arg-type]
    by_columns, by_items = writer(), writer()
    in_flight: list[ScheduledBatch] = []
    num_rows = num_preempted = 0
    for number in range(250):
        if rng.random() < 0.4:
            settings = rng.choice([{}, {"temperature": 1.0, "seed": number}, {"presence_penalty": 1.0}])
            params = SamplingParams(max_tokens=rng.randint(1, 15), **settings)
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 6))]
            scheduler.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params))
        if scheduler.running and rng.random() < 0.05:
            scheduler.abort(rng.choice(scheduler.running).request_id)
        batch = scheduler.schedule()
        num_rows, num_preempted = num_rows + batch.num_decodes, num_preempted + len(batch.preempted)
        if batch.num_reqs:
            hosts = [stale_host(8, 4), stale_host(8, 4)]
            built = [by_columns.write(hosts[0], batch), by_items.write(hosts[1], ScheduledBatch(batch.items))]
            assert built[0] == built[1]
            for name in hosts[0]:
                assert torch.equal(hosts[0][name], hosts[1][name]), name
            scheduler.advance(batch)
            in_flight.append(batch)
        while len(in_flight) > overlap * bool(batch.num_reqs):
            read = in_flight.pop(0)
            scheduler.complete(read, {r.request_id: rng.randrange(100) for r in read.sampling})
            for request in read.sampling:
                if natural_finish(request, eos_token_ids=(), max_model_len=limits["max_model_len"]):
                    scheduler.finish(request, FinishReason.LENGTH)
    assert num_rows > 200 and (num_preempted > 0) is (num_pages == 11)


# --- what stays in a memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_pages", [9, 41], ids=["few pages", "pages for all"])
@pytest.mark.parametrize("num_mirrors", [1, 2])
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
def test_what_is_left_in_place_is_what_would_be_written(overlap: bool, num_mirrors: int, num_pages: int) -> None:
    """Random traffic, written into memory that keeps its contents and into memory full of rubbish."""
    rng = random.Random(100 * num_pages + 10 * num_mirrors + overlap)
    limits = {"max_num_reqs": 4, "max_num_batched_tokens": 8, "max_model_len": WIDTH * PAGE_SIZE}
    allocator = PageAllocator(num_pages, PAGE_SIZE)
    scheduler = Scheduler(allocator=allocator, **limits)  # type: ignore[arg-type]
    buffers = StaticBuffers(declared(), max_sizes={NUM_TOKENS: 8, NUM_REQS: 4}, device=torch.device("cpu"))
    ring = [Staging(buffers) for _ in range(num_mirrors)]
    keeping, fresh = writer(), writer()
    in_flight: list[ScheduledBatch] = []
    num_written = num_in_place = num_preempted = 0
    for number in range(800):
        if rng.random() < 0.2:
            settings = rng.choice([{}, {}, {}, {"temperature": 1.0, "seed": number}])
            params = SamplingParams(max_tokens=rng.randint(1, 15), **settings)
            prompt = [rng.randrange(100) for _ in range(rng.randint(1, 6))]
            scheduler.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params))
        if scheduler.running and rng.random() < 0.05:
            scheduler.abort(rng.choice(scheduler.running).request_id)
        batch = scheduler.schedule()
        num_preempted += len(batch.preempted)
        if batch.num_reqs:
            num_tokens = next(size for size in (2, 4, 8) if size >= batch.num_tokens)
            num_reqs = 4 if batch.others or rng.random() < 0.1 else min(num_tokens, 4)
            sizes = {NUM_TOKENS: num_tokens, NUM_REQS: max(num_reqs, batch.num_reqs)}
            staging = ring[number % num_mirrors]
            for _ in range(1 + (rng.random() < 0.05)):  # a step that was interrupted is written again
                host, rubbish = staging.open(sizes), stale_host(num_tokens, sizes[NUM_REQS])
                num_written += 1
                num_in_place += host.kept is not None
                if (
                    keeping._free and batch.num_reqs < 4 and rng.random() < 0.1
                ):  # a write that fails when it has changed the tables
                    item = ScheduledRequest(decoding("lost", [1], computed=9), 9, 1, False, True)
                    for memory, target in ((keeping, host), (fresh, rubbish)):
                        with pytest.raises(PageIntegrityError):
                            memory.write(target, ScheduledBatch((*batch.others, item), (), batch.decodes))
                    assert host.kept is None
                assert keeping.write(host, batch) == fresh.write(rubbish, batch)
                for name in host:
                    assert torch.equal(host[name], rubbish[name]), name
            scheduler.advance(batch)
            in_flight.append(batch)
        while len(in_flight) > overlap * bool(batch.num_reqs):
            read = in_flight.pop(0)
            scheduler.complete(read, {r.request_id: rng.randrange(100) for r in read.sampling})
            for request in read.sampling:
                if natural_finish(request, eos_token_ids=(), max_model_len=limits["max_model_len"]):
                    scheduler.finish(request, FinishReason.LENGTH)
    assert num_in_place > num_written / 4 and num_written > 300
    assert (num_preempted > 0) is (num_pages == 9)


def test_a_row_that_was_cleared_is_written_again() -> None:
    requests = [decoding(name, [1 + index], computed=2) for index, name in enumerate("abc")]
    memory, host = writer(), stale_host(4, 4)
    for num_reqs, expected in ((3, [1, 2, 3, 0]), (2, [1, 2, 0, 0]), (3, [1, 2, 3, 0])):
        memory.write(host, decode_batch(*requests[:num_reqs]))
        assert host["block_tables"][:, 0].tolist() == expected


def test_a_step_like_the_one_before_writes_only_what_changes() -> None:
    scheduler = Scheduler(
        max_num_reqs=4, max_num_batched_tokens=8, max_model_len=20, allocator=PageAllocator(11, PAGE_SIZE)
    )
    for name in "ab":
        scheduler.add(Request(request_id=name, prompt_token_ids=[5], params=SamplingParams(max_tokens=12)))
    memory, host, kept = writer(), stale_host(4, 4), []
    for _ in range(8):
        batch = scheduler.schedule()
        memory.write(host, batch)
        if batch.decodes is not None and host.kept is not None and len(kept) > 2:
            lasting = ("input_ids", "feed_rows", "query_start", "sampled_rows", "settings", "count_rows")
            assert all((host[name] == STALE).all() for name in lasting)
            assert host["positions"][:2].tolist() == batch.decodes.starts.tolist()
            is_new = batch.decodes.starts % PAGE_SIZE == 0
            assert [bool((row != STALE).any()) for row in host["block_tables"]] == [*is_new.tolist(), False, False]
        kept.append(batch)
        scheduler.advance(batch)
        for tensor in host.values():
            tensor.fill_(STALE)
        if len(kept) > 1:
            scheduler.complete(kept[-2], {"a": 7, "b": 8})
    assert len(kept) == 8
