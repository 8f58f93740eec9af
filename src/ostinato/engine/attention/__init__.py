"""Attention over the paged KV cache: one backend per kernel family behind one Protocol.

Models call `paged_attention` (or its fused form `rotary_paged_attention`); `engine.execution` builds an
`AttentionMetadata` for each step and installs it with `set_forward_context`.
"""

from ostinato.engine.attention.backend import (
    AttentionBackend,
    AttentionShape,
    FusedAttentionBackend,
    PlanningAttentionBackend,
)
from ostinato.engine.attention.context import (
    ForwardContext,
    get_forward_context,
    install_forward_context,
    set_forward_context,
)
from ostinato.engine.attention.metadata import AttentionMetadata
from ostinato.engine.attention.registry import get_attention_backend
from ostinato.engine.attention.unified import paged_attention, rotary_paged_attention

__all__ = [
    "AttentionBackend",
    "AttentionMetadata",
    "AttentionShape",
    "ForwardContext",
    "FusedAttentionBackend",
    "PlanningAttentionBackend",
    "get_attention_backend",
    "get_forward_context",
    "install_forward_context",
    "paged_attention",
    "rotary_paged_attention",
    "set_forward_context",
]
