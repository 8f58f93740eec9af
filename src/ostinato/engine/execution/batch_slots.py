"""The fixed inputs of one engine step, and how a scheduled batch is written into them.

One row a token: ids, positions, cache slots. One row a request: block table, context length, first row, and
the row that is sampled from. Padded rows write to slot 0 of the null page and read an empty context.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, int32, int64

from ostinato.engine.paging import pages_for, slots_for
from ostinato.engine.scheduler import ScheduledBatch
from ostinato.runtime import Slot

__all__ = ["batch_slots", "fill_batch"]


def batch_slots(*, vocab_size: int, max_model_len: int, num_pages: int, page_size: int) -> dict[str, Slot]:
    """Slots of `Executor.forward`, in its parameter order; every tail is an index that is safe to execute."""
    width = pages_for(max_model_len, page_size)
    return {
        "input_ids": Slot(shape=(None,), dtype=int64, valid_range=(0, vocab_size)),
        "positions": Slot(shape=(None,), dtype=int64, valid_range=(0, max_model_len)),
        "slot_mapping": Slot(shape=(None,), dtype=int64, valid_range=(0, num_pages * page_size)),
        "block_tables": Slot(shape=(None, width), dtype=int32, axis="num_reqs", valid_range=(0, num_pages)),
        "seq_lens": Slot(shape=(None,), dtype=int32, axis="num_reqs"),
        "query_start": Slot(shape=(None,), dtype=int32, axis="num_reqs", extra=1),
        "sampled_rows": Slot(shape=(None,), dtype=int64, axis="num_reqs"),
    }


def fill_batch(host: dict[str, Tensor], batch: ScheduledBatch, *, page_size: int) -> None:
    """Write ``batch`` and its tails into host tensors of the padded sizes, every row of them."""
    arrays = {name: tensor.numpy() for name, tensor in host.items()}
    tables, query_start = arrays["block_tables"], arrays["query_start"]
    tables.fill(0)
    query_start[0] = 0
    row = 0
    for index, item in enumerate(batch.items):
        end = row + item.num_new_tokens
        pages = item.request.pages
        arrays["input_ids"][row:end] = item.request.token_slice(item.start, item.num_new_tokens)
        arrays["positions"][row:end] = np.arange(item.start, item.end)
        arrays["slot_mapping"][row:end] = slots_for(pages, item.start, item.num_new_tokens, page_size)
        tables[index, : len(pages)] = pages
        arrays["seq_lens"][index] = item.end
        query_start[index + 1] = end
        arrays["sampled_rows"][index] = end - 1
        row = end
    for name in ("input_ids", "positions", "slot_mapping"):
        arrays[name][row:] = 0
    for name in ("seq_lens", "sampled_rows"):
        arrays[name][batch.num_reqs :] = 0
    query_start[batch.num_reqs + 1 :] = row
