"""The known formulas of a decoder's memory, with its numbers in them. Pure arithmetic on a `ModelConfig`.

Weights are exact, and tested against the model itself. What a token takes while it runs is one buffer of each kind: an
allocator hands them from layer to layer. The MLP's is that of gate and up, in which their product lies too; only what a
compiler makes, and steps whose products are kernels of ours, have another for it. Called by the memory report.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.engine.kvcache import bytes_per_token
from ostinato.engine.models.config import ModelConfig

__all__ = ["Footprint", "Term", "footprint_of"]


@dataclass(frozen=True, kw_only=True)
class Term:
    """One quantity: what it is, how it is computed, and its bytes."""

    name: str
    formula: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model in one dtype.

    Attributes:
        weights: by part.
        kv_token: keys and values of one token, all layers.
        token: buffers that one token needs while it runs through a layer.
        logits_row: scores of one row that is sampled from.
    """

    weights: tuple[Term, ...]
    kv_token: Term
    token: tuple[Term, ...]
    logits_row: Term

    @property
    def weight_bytes(self) -> int:
        """All parameters; the rotary table, which is no parameter, is left out."""
        return sum(term.num_bytes for term in self.weights)

    def terms(self) -> list[Term]:
        """All of them, in the order of a report."""
        return [*self.weights, self.kv_token, *self.token, self.logits_row]


def footprint_of(config: ModelConfig, *, element_bytes: int) -> Footprint:
    """The formulas for ``config``, weights and activations of ``element_bytes`` each."""
    layers, hidden, inner, vocab = config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size
    heads, kv_heads, dim, traits = config.num_heads, config.num_kv_heads, config.head_dim, config.traits
    merged = (heads + 2 * kv_heads) * dim

    def term(name: str, formula: str, elements: int) -> Term:
        return Term(name=name, formula=f"{formula} x {element_bytes} bytes", num_bytes=elements * element_bytes)

    qk_norms = 2 * dim if traits.has_qk_norm else 0
    norms = (2 * layers + 1) * hidden + layers * qk_norms
    of_norms = f"{norms} (2 a layer and 1, of {hidden}" + (f"; 2 a layer, of {dim})" if qk_norms else ")")
    biases = merged * traits.has_qkv_bias + hidden * traits.has_out_bias + (2 * inner + hidden) * traits.has_mlp_bias
    weights = [
        term("embedding", f"{vocab} vocabulary x {hidden} hidden", vocab * hidden),
        term("QKV", f"{layers} layers x {hidden} x ({heads} + 2 x {kv_heads}) x {dim}", layers * hidden * merged),
        term("attention out", f"{layers} layers x {heads} x {dim} x {hidden}", layers * heads * dim * hidden),
        term("gate and up", f"{layers} layers x 2 x {hidden} x {inner}", layers * 2 * hidden * inner),
        term("down", f"{layers} layers x {inner} x {hidden}", layers * inner * hidden),
        term("norms", of_norms, norms),
    ]
    if biases:
        weights.append(term("biases", f"{layers} layers x {biases}", layers * biases))
    if not config.has_tied_head:
        weights.append(term("head", f"{vocab} vocabulary x {hidden} hidden", vocab * hidden))
    kv_bytes = bytes_per_token(num_layers=layers, num_kv_heads=kv_heads, head_dim=dim, element_bytes=element_bytes)
    kv_formula = f"2 x {layers} layers x {kv_heads} KV heads x {dim} x {element_bytes} bytes"
    return Footprint(
        weights=tuple(weights),
        kv_token=Term(name="KV cache, a token", formula=kv_formula, num_bytes=kv_bytes),
        token=(
            term("hidden state, a token", f"{hidden}", hidden),
            term("QKV, a token", f"({heads} + 2 x {kv_heads}) x {dim}", merged),
            term("MLP, a token", f"2 x {inner}", 2 * inner),
        ),
        logits_row=term("logits, a row", f"{vocab}", vocab),
    )
