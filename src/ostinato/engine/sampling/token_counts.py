"""How often each token stands in a request's prompt and output: what penalties look up, on the device.

One int16 a token: twice the number of times in the output, plus one if it is in the prompt. Output counts end at
16,383, which int16 holds and no frequency penalty tells from more. One row a request at a fixed address, since graphs
read and write it; row 0 belongs to nobody. A step counts the token that it chooses itself, so the host builds a row
only when its request enters, or when it cannot know whether a launch has counted. Called by the executor and by
`choose_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.engine.request import Request

__all__ = ["COUNT_STEP", "MOST_COUNT", "RowToBuild", "allocate_counts", "build_rows", "count_tokens"]

COUNT_STEP: Final = 2
MOST_COUNT: Final = 2**15 - 1


@dataclass(frozen=True, slots=True)
class RowToBuild:
    """A row that does not hold its request's tokens yet."""

    row: int
    request: Request
    fed_from: int
    """Row of the sampled tokens at which its pending token lies; 0 if it has none."""


def allocate_counts(max_num_reqs: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    """[max_num_reqs + 1, vocab_size] int16, all zero."""
    with torch.inference_mode(False):
        return torch.zeros((max_num_reqs + 1, vocab_size), dtype=torch.int16, device=device)


def build_rows(counts: torch.Tensor, rows: Sequence[RowToBuild], last_ids: torch.Tensor) -> None:
    """Make ``rows`` of ``counts`` what their requests' tokens say, pending ones too. Waits for nothing.

    Args:
        counts: [num_rows, vocab] int16.
        last_ids: [max_num_reqs + 1] int64, the tokens that were sampled last; -1 is none.
    """
    vocab, device = counts.shape[1], counts.device
    found = [_counted(each.request, vocab) for each in rows]
    places = np.concatenate([each.row * vocab + ids for each, (ids, _) in zip(rows, found, strict=True)])
    counts.index_fill_(0, _upload(np.array([each.row for each in rows]), device), 0)
    values = np.concatenate([values for _, values in found])
    counts.view(-1).index_copy_(0, _upload(places, device), _upload(values, device))
    pending = [(each.row, each.fed_from) for each in rows if each.fed_from]
    if pending:
        owners, sources = _upload(np.array(pending).T.copy(), device)
        count_tokens(counts, owners, last_ids[sources])


def count_tokens(counts: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Count one output token for each of ``rows`` [num] int64, all different; -1 is none."""
    is_token, token_ids = token_ids >= 0, token_ids.clamp(min=0)
    counted = counts[rows, token_ids].int() + COUNT_STEP * is_token
    counts[rows, token_ids] = torch.where(counted > MOST_COUNT, counted - COUNT_STEP, counted).to(counts.dtype)


def _counted(request: Request, vocab: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """The tokens that the host knows of, each once, and what stands for each. Ids past ``vocab`` are left out."""
    num_prompt = request.num_prompt_tokens
    tokens = np.array(request.all_token_ids, dtype=np.int64)
    ids, index = np.unique(tokens, return_inverse=True)
    values = COUNT_STEP * np.bincount(index[num_prompt:], minlength=len(ids))
    values = np.minimum(values, MOST_COUNT - 1)
    values[index[:num_prompt]] += 1
    is_token = ids < vocab
    return ids[is_token], values[is_token].astype(np.int16)


def _upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    # From pageable memory the copy would wait for the device.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
