"""The fixed inputs of one engine step; `BatchWriter` fills them.

One row a token: ids, where to find ids that only the device knows, positions, cache slots. One row a request:
block table, context length, first row, the row that is sampled from, how it is sampled, and where its tokens are
counted for penalties. Padded rows write to slot 0 of the null page, read an empty context, and are greedy.
"""

from __future__ import annotations

from torch import float64, int32, int64

from ostinato.engine.paging import pages_for
from ostinato.engine.sampling import NUM_SETTINGS
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
        "settings": Slot(shape=(None, NUM_SETTINGS), dtype=float64, axis="num_reqs"),
        "count_rows": Slot(shape=(None,), dtype=int64, axis="num_reqs", valid_range=(0, max_num_reqs + 1)),
    }
