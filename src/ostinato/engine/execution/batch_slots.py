"""The fixed inputs of one engine step; `BatchWriter` fills them.

One row a token: ids, where to find ids that only the device knows, positions, cache slots. One row a request:
block table, context length, first row, and the row that is sampled from. Padded rows write to slot 0 of the null
page and read an empty context.
"""

from __future__ import annotations

from torch import int32, int64

from ostinato.engine.paging import pages_for
from ostinato.runtime import Slot

__all__ = ["batch_slots"]


def batch_slots(
    *, vocab_size: int, max_model_len: int, max_num_reqs: int, num_pages: int, page_size: int
) -> dict[str, Slot]:
    """Slots of `Executor.forward`, in its parameter order; every tail is an index that is safe to execute."""
    width = pages_for(max_model_len, page_size)
    return {
        "input_ids": Slot(shape=(None,), dtype=int64, valid_range=(0, vocab_size)),
        "feed_rows": Slot(shape=(None,), dtype=int32, valid_range=(0, max_num_reqs + 1)),
        "positions": Slot(shape=(None,), dtype=int64, valid_range=(0, max_model_len)),
        "slot_mapping": Slot(shape=(None,), dtype=int64, valid_range=(0, num_pages * page_size)),
        "block_tables": Slot(shape=(None, width), dtype=int32, axis="num_reqs", valid_range=(0, num_pages)),
        "seq_lens": Slot(shape=(None,), dtype=int32, axis="num_reqs"),
        "query_start": Slot(shape=(None,), dtype=int32, axis="num_reqs", extra=1),
        "sampled_rows": Slot(shape=(None,), dtype=int64, axis="num_reqs"),
    }
