"""One decision for all ranks: ranks that replay different keys would wait for each other in a collective for good.

Pure. How ranks exchange their batches (a small all-gather on the host) is the business of whoever runs them; each
then decides by what `agree_on` gives, which is the same everywhere, and pads its own rows up to that key.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import ConfigError
from ostinato.runtime.keys import LiveBatch, Veto

__all__ = ["agree_on"]


def agree_on(lives: Sequence[LiveBatch]) -> LiveBatch:
    """The batch by which every rank decides: a key that holds it holds each rank's own.

    Args:
        lives: of all ranks, in one order everywhere. A rank without tokens runs along and goes along with any key.

    Returns:
        The largest of each size. A size that one rank leaves open is open; decode is uniform only if it is so on all
        ranks alike; one rank's veto holds for all. Where ranks are at different variants no graph serves, and the
        batch is vetoed.

    Raises:
        ConfigError: there is no rank, or something else than a batch.
    """
    if not isinstance(lives, Sequence) or not lives or not all(isinstance(live, LiveBatch) for live in lives):
        raise ConfigError("there are no ranks to agree", fix="pass a list of one LiveBatch for each rank", got=lives)
    busy = [live for live in lives if live.num_tokens] or list(lives[:1])
    query_lens = {live.uniform_query_len for live in busy}
    variants = sorted({live.variant for live in busy})
    veto, veto_reason = _strongest_veto(lives)
    if len(variants) > 1:
        veto, veto_reason = Veto.GRAPHS, f"ranks run different variants: {', '.join(map(repr, variants))}"
    return LiveBatch(
        num_tokens=max(live.num_tokens for live in busy),
        num_reqs=_largest([live.num_reqs for live in busy]),
        uniform_query_len=query_lens.pop() if len(query_lens) == 1 else None,
        context_tokens=_largest([live.context_tokens for live in busy]),
        num_active_loras=max(live.num_active_loras for live in busy),
        variant=variants[0],
        veto=veto,
        veto_reason=veto_reason,
    )


def _largest(sizes: Sequence[int | None]) -> int | None:
    """The largest, or None if any is open."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _strongest_veto(lives: Sequence[LiveBatch]) -> tuple[Veto | None, str]:
    for veto in (Veto.GRAPHS, Veto.FULL):
        for rank, live in enumerate(lives):
            if live.veto == veto:
                return veto, f"rank {rank}: {live.veto_reason}"
    return None, ""
