"""Default bucket ladders: dense where sizes are small and graphs cheap, sparse above.

Pure arithmetic. The largest size is always a bucket, so that the peak never falls to eager (PITFALLS:
largest live size above the largest bucket).
"""

from __future__ import annotations

from ostinato.errors import ConfigError

__all__ = ["decode_ladder", "token_ladder"]


def decode_ladder(max_num_reqs: int) -> tuple[int, ...]:
    """Request buckets of uniform decode: 1, 2, 4, then every 8 to 64, 16 to 256, 32 above."""
    _check(max_num_reqs)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_reqs, 32)]
    return _capped(sizes, max_num_reqs)


def token_ladder(max_num_tokens: int) -> tuple[int, ...]:
    """Token buckets of mixed steps: powers of two to 16, then four to an octave: 20, 24, 28, 32, 40, ..."""
    _check(max_num_tokens)
    sizes = [1, 2, 4, 8, 16]
    octave = 16
    while octave < max_num_tokens:
        sizes += [octave + octave * quarter // 4 for quarter in (1, 2, 3, 4)]
        octave *= 2
    return _capped(sizes, max_num_tokens)


def _capped(sizes: list[int], largest: int) -> tuple[int, ...]:
    return tuple(sorted({s for s in sizes if s < largest} | {largest}))


def _check(largest: int) -> None:
    if largest < 1:
        raise ConfigError(f"the largest bucket is {largest}", fix="use 1 or more")
