"""One block of the decoder, and the names that a checkpoint has for its tensors."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from ostinato.engine.layers import FusedLinears, GatedMLP, RMSNorm, SelfAttention, takes_one_row_path
from ostinato.engine.models.config import ModelConfig

__all__ = ["DecoderLayer"]


class DecoderLayer(nn.Module):
    """One block. Takes and gives (addend, residual): what the block before it has yet to add, and the stream.

    The addend may come in parts (`FusedLinears.split_linear`). Steps of one row (`takes_one_row_path`) leave none: each
    projection adds to the stream itself.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.linears = FusedLinears()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = SelfAttention(
            layer=layer,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            has_qkv_bias=config.traits.has_qkv_bias,
            has_out_bias=config.traits.has_out_bias,
            has_qk_norm=config.traits.has_qk_norm,
        )
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, has_bias=config.traits.has_mlp_bias)

    def forward(self, addend: Tensor | None, residual: Tensor, rotary: Tensor) -> tuple[Tensor | None, Tensor]:
        """All [num_tokens, hidden_size], but ``rotary`` [num_tokens, head_dim]; no addend in the first layer."""
        if addend is None and takes_one_row_path(residual):
            return None, self._forward_one_row(residual, rotary)
        linears, (attention_norm, attention, mlp_norm, mlp) = self.linears, self._parts()
        (to_qkv, to_out), (gate_up, down) = attention.projections(), mlp.projections()
        # One name for what flows through: with a name each, all of it would live until the block ends.
        if addend is None:
            x = attention_norm(residual)
        else:
            x, residual = attention_norm.add(addend, residual)
        x = linears.linear(x, *to_qkv.tensors())
        x = attention.attend(x, rotary)
        x = linears.split_linear(x, to_out)
        x, residual = mlp_norm.add(x, residual)
        x = linears.gated_linear(x, gate_up)
        return linears.split_linear(x, down), residual

    def _forward_one_row(self, residual: Tensor, rotary: Tensor) -> Tensor:
        """The same in five launches instead of seven; the stream is updated in place."""
        linears, (attention_norm, attention, mlp_norm, mlp) = self.linears, self._parts()
        (to_qkv, to_out), (gate_up, down) = attention.projections(), mlp.projections()
        qkv = linears.norm_linear(residual, attention_norm, *to_qkv.tensors())
        residual = linears.linear_add(residual, attention.attend(qkv, rotary), to_out)
        gated = linears.norm_gated_linear(residual, mlp_norm, gate_up)
        return linears.linear_add(residual, gated, down)

    def _parts(self) -> tuple[RMSNorm, SelfAttention, RMSNorm, GatedMLP]:
        """In the order of use; see `Linear.tensors`."""
        modules = self._modules
        return modules["attention_norm"], modules["attention"], modules["mlp_norm"], modules["mlp"]  # type: ignore[return-value]

    def checkpoint_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names in this layer, each with the rows of a parameter that it fills."""
        attention, mlp = self.attention, self.mlp
        yield "input_layernorm.weight", self.attention_norm.weight
        yield "post_attention_layernorm.weight", self.mlp_norm.weight
        if attention.q_norm is not None and attention.k_norm is not None:
            yield "self_attn.q_norm.weight", attention.q_norm.weight
            yield "self_attn.k_norm.weight", attention.k_norm.weight
        q_size, kv_size = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        intermediate = mlp.down.weight.shape[1]
        merged = (
            (attention.qkv, "self_attn", {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}),
            (attention.out, "self_attn", {"o_proj": attention.out.weight.shape[0]}),
            (mlp.gate_up, "mlp", {"gate_proj": intermediate, "up_proj": intermediate}),
            (mlp.down, "mlp", {"down_proj": mlp.down.weight.shape[0]}),
        )
        for projection, block, parts in merged:
            for kind, parameter in (("weight", projection.weight), ("bias", projection.bias)):
                if parameter is not None:
                    for part, rows in zip(parts, parameter.split(list(parts.values())), strict=True):
                        yield f"{block}.{part}.{kind}", rows
