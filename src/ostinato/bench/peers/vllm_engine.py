"""vLLM's offline ``LLM`` as a peer: default settings but for the limits, prefix cache off, tokens in and out.

API: docs.vllm.ai, "Offline Inference".
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from ostinato.bench.peers.registry import PeerSettings

__all__ = ["VllmPeer", "open_peer"]


def open_peer(name: str, settings: PeerSettings) -> VllmPeer:
    """Load, compile and capture as vLLM does by default."""
    return VllmPeer(settings)


class VllmPeer:
    """See `Peer`."""

    def __init__(self, settings: PeerSettings) -> None:
        from vllm import LLM

        self._engine: Any = LLM(
            model=settings.model,
            load_format=settings.load_format,
            dtype=settings.dtype,
            skip_tokenizer_init=True,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_reqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_prefix_caching=False,
            gpu_memory_utilization=0.8,
        )

    def generate_seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """See `Peer`."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        began = time.perf_counter()
        outputs = self._engine.generate(inputs, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        if any(len(output.outputs[0].token_ids) != num_tokens for output in outputs):
            raise RuntimeError("vLLM ended a request early")
        return seconds

    def close(self) -> None:
        """See `Peer`."""
        self._engine = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
