"""The one decoder of all families: pre-norm blocks of attention and gated MLP on a residual stream.

Tokens of all requests come as one flat batch; which token belongs to whom, attention knows from the forward
context. The forward pass keeps no state and waits for nothing on the host, so it may be captured. Choosing
the rows that are sampled from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from ostinato.engine.layers import FusedLinears, RMSNorm, RotaryTable, gather_rows, takes_one_row_path
from ostinato.engine.models.checkpoint import fill_from_checkpoint
from ostinato.engine.models.config import ModelConfig
from ostinato.engine.models.decoder_layer import DecoderLayer
from ostinato.engine.models.dummy import fill_dummy

__all__ = ["DecoderModel"]


class DecoderModel(nn.Module):
    """A causal language model; its parameters are uninitialised until loaded.

    Args:
        config: what to build.
        max_model_len: positions that the rotary table holds, in tokens.
    """

    def __init__(self, config: ModelConfig, *, max_model_len: int) -> None:
        super().__init__()
        self.config = config
        self.max_model_len = max_model_len
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.rotary = RotaryTable(config.rope, config.head_dim, max_model_len)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.bind_linears(FusedLinears())
        self.head = (
            self.embedding
            if config.has_tied_head
            else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        )

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """One step, inside a forward context.

        Args:
            input_ids: [num_tokens] int64, below the vocabulary's size.
            positions: [num_tokens] int64, below ``max_model_len``; padded rows 0.

        Returns:
            [num_tokens, hidden_size], the residual stream before the last norm, which `compute_logits` does: on
            the rows that are sampled from, and within the output projection if that is one.
        """
        rotary = self.rotary(positions)
        addend, residual = None, gather_rows(self.embedding, input_ids)
        for layer in self.layers:
            addend, residual = layer.forward(addend, residual, rotary)  # it has no hooks that a call would look for
        return residual if addend is None else self.norm.add(addend, residual)[1]

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of what `forward` gives, [num_rows, hidden_size] -> [num_rows, vocab_size], in the model's dtype.

        Args:
            hidden: as above.
            out: where to write them, contiguous; a new tensor if None.
        """
        if takes_one_row_path(hidden):
            return self.linears.norm_linear(hidden, self.norm, self.head, out=out)
        return self.linears.linear(self.norm(hidden), self.head, out=out)

    def bind_linears(self, linears: FusedLinears) -> None:
        """Set which kernels steps of up to 128 rows take; before anything is captured."""
        self.linears = linears
        for layer in self.layers:
            layer.linears = linears  # type: ignore[assignment]

    def bind_attention(self, *, fuses_rotary: bool) -> None:
        """Fix what the forward pass would else ask the forward context: which of the two breaks attention is."""
        for layer in self.layers:
            layer.attention.fuses_rotary = fuses_rotary  # type: ignore[union-attr, assignment]

    def load_weights(
        self, items: Iterable[tuple[str, Tensor]], *, put: Callable[[Tensor, Tensor], object] = Tensor.copy_
    ) -> None:
        """Fill the parameters from tensors with Hugging Face names, in place: their addresses stay.

        Args:
            items: names and tensors.
            put: called with each parameter, or the rows of it, and what belongs there, instead of the copy.

        Raises:
            CheckpointError: tensors are missing, unexpected, given twice or of the wrong shape; it names them.
        """
        ignored = {"lm_head.weight"} if self.config.has_tied_head else set()
        fill_from_checkpoint(dict(self._checkpoint_targets()), items, ignored=ignored, put=put)

    def init_dummy(self, seed: int) -> None:
        """Fill the parameters with small random values, the same for the same seed and device."""
        fill_dummy(self, seed)

    def _checkpoint_targets(self) -> Iterator[tuple[str, Tensor]]:
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.norm.weight
        if not self.config.has_tied_head:
            yield "lm_head.weight", self.head
        for index, layer in enumerate(self.layers):
            for name, target in layer.checkpoint_targets():  # type: ignore[operator]
                yield f"model.layers.{index}.{name}", target
