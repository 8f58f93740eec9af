"""The self-attention block: the weights of its projections; QK norm, rotary embedding and paged attention."""

from __future__ import annotations

from torch import Tensor, nn

from ostinato.engine.attention import get_forward_context, paged_attention, rotary_paged_attention
from ostinato.engine.layers.linear import Linear
from ostinato.engine.layers.rms_norm import RMSNorm
from ostinato.engine.layers.rotary import rotate

__all__ = ["SelfAttention"]


class SelfAttention(nn.Module):
    """Causal grouped-query attention of one layer. `FusedLinears` multiplies by its projections.

    Args:
        layer: index of this layer's KV cache.
        hidden_size: width of the residual stream.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: elements a head.
        norm_eps: of the QK norm.
        has_qkv_bias, has_out_bias: biases of the projections.
        has_qk_norm: RMS norm of each query and key head before rotation.
    """

    def __init__(
        self,
        *,
        layer: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norm_eps: float,
        has_qkv_bias: bool,
        has_out_bias: bool,
        has_qk_norm: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.fuses_rotary: bool | None = None
        """Whether the backend does; None asks the forward context, which not every compiler can trace."""
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.norm_eps = norm_eps
        self.qkv = Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, has_bias=has_qkv_bias)
        self.out = Linear(num_heads * head_dim, hidden_size, has_bias=has_out_bias)
        self.q_norm = RMSNorm(head_dim, norm_eps) if has_qk_norm else None
        self.k_norm = RMSNorm(head_dim, norm_eps) if has_qk_norm else None

    def projections(self) -> tuple[Linear, Linear]:
        """(qkv, out); see `Linear.tensors`."""
        modules = self._modules
        return modules["qkv"], modules["out"]  # type: ignore[return-value]

    def _norms(self) -> tuple[RMSNorm | None, RMSNorm | None]:
        """(q_norm, k_norm); see `Linear.tensors`."""
        modules = self._modules
        return modules.get("q_norm"), modules.get("k_norm")  # type: ignore[return-value]

    def attend(self, qkv: Tensor, rotary: Tensor) -> Tensor:
        """What lies between the projections; ``rotary``: [num_tokens, head_dim], rows of `RotaryTable`.

        [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] -> [num_tokens, num_heads * head_dim].
        """
        attended = qkv.new_empty((qkv.shape[0], self.num_heads, self.head_dim))
        fuses_rotary = self.fuses_rotary
        if fuses_rotary is None:
            fuses_rotary = get_forward_context().backend.fuses_rotary
        q_norm, k_norm = self._norms()
        if fuses_rotary:
            q_scale = None if q_norm is None else q_norm.scale
            k_scale = None if k_norm is None else k_norm.scale
            rotary_paged_attention(qkv, rotary, attended, q_scale, k_scale, self.layer, self.scale, self.norm_eps)
        else:
            heads = qkv.view(qkv.shape[0], -1, self.head_dim)
            q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
            if q_norm is not None and k_norm is not None:
                q, k = q_norm(q), k_norm(k)
            paged_attention(rotate(q, rotary), rotate(k, rotary), v, attended, self.layer, self.scale)
        return attended.view(qkv.shape[0], -1)
