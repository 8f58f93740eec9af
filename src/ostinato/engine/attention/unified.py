"""The two calls that models make, each a break in piecewise graphs and a plain part of full ones.

They read the *current* forward context when they run, so a replayed break sees the live step. Only the
first ``metadata.num_tokens`` rows of the arguments are used; rows of ``out`` past them become zeros.
"""

from __future__ import annotations

from torch import Tensor

from ostinato.engine.attention.backend import FusedAttentionBackend
from ostinato.engine.attention.context import get_forward_context
from ostinato.runtime.breaks import graph_break

__all__ = ["paged_attention", "rotary_paged_attention"]


@graph_break(mutates=("out",), clears_tail=True)
def paged_attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor, layer: int, scale: float) -> None:
    """Write this step's keys and values of ``layer``, then attend.

    Args:
        q: [num_tokens, num_heads, head_dim], rotated; rows may be strided.
        k: [num_tokens, num_kv_heads, head_dim], rotated; rows may be strided.
        v: like ``k``.
        out: like ``q``, contiguous; written in place.
        layer: index of the cache.
        scale: factor on the scores.
    """
    context = get_forward_context()
    metadata, cache = context.metadata, context.caches[layer]
    live = metadata.num_tokens
    context.backend.write_kv(k[:live], v[:live], cache, metadata)
    context.backend.attend(q[:live], out[:live], cache, metadata, scale)
    if live < out.shape[0]:
        out[live:].zero_()


@graph_break(mutates=("out",), clears_tail=True)
def rotary_paged_attention(
    qkv: Tensor,
    rotary: Tensor,
    out: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    layer: int,
    scale: float,
    eps: float,
) -> None:
    """`paged_attention` from the merged projection; needs a `FusedAttentionBackend` in the context.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous, not rotated.
        rotary: [num_tokens, head_dim] float32: cosines, then sines, of each row's position.
        out: [num_tokens, num_heads, head_dim], contiguous; written in place.
        q_norm: [head_dim] weight of the per-head norm of queries, or None.
        k_norm: the same for keys.
        layer: index of the cache.
        scale: factor on the scores.
        eps: of both norms.
    """
    context = get_forward_context()
    metadata, cache = context.metadata, context.caches[layer]
    backend: FusedAttentionBackend = context.backend  # type: ignore[assignment]
    backend.rotary_attend(qkv, rotary, out, cache, metadata, scale, q_norm, k_norm, eps)
