"""Hugging Face transformers as three peers: ``generate`` eager, ``generate`` on a static cache (which transformers
then compiles with ``reduce-overhead``), and ``generate_batch`` (continuous batching).

API: the pages "Caching", "torch.compile" and "Continuous batching" of the transformers 5 documentation.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from ostinato.bench.peers.registry import PeerSettings

__all__ = ["ContinuousPeer", "GeneratePeer", "open_peer"]


def open_peer(name: str, settings: PeerSettings) -> GeneratePeer | ContinuousPeer:
    """Load the model; compiling comes with the first calls of each shape."""
    if name == "transformers-continuous":
        return ContinuousPeer(settings)
    return GeneratePeer(settings, cache="static" if name == "transformers-static" else None)


def _load(settings: PeerSettings) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = getattr(torch, settings.dtype)
    if settings.load_format == "dummy":
        with torch.device(settings.device):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(settings.model), dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=dtype)
    return model.to(settings.device).eval()


class GeneratePeer:
    """``model.generate`` on a batch of prompts of one length. See `Peer`."""

    def __init__(self, settings: PeerSettings, *, cache: str | None) -> None:
        self._model: Any = _load(settings)
        # Without an end-of-sequence token every request runs to its last token, and there is no text to stop at.
        self._model.generation_config.eos_token_id = None
        self._options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
        if cache is not None:
            # The cache is as long as the longest request of any call: another length would be compiled again.
            self._options |= {"cache_implementation": cache, "max_cache_len": sum(settings.warm_up_tokens)}

    def generate_seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """See `Peer`."""
        input_ids = torch.tensor([list(prompt) for prompt in prompts], device=self._model.device)
        mask = torch.ones_like(input_ids)
        _wait(self._model.device)
        began = time.perf_counter()
        output = self._model.generate(input_ids, attention_mask=mask, max_new_tokens=num_tokens, **self._options)
        _wait(self._model.device)
        seconds = time.perf_counter() - began
        if output.shape[1] != input_ids.shape[1] + num_tokens:
            raise RuntimeError("transformers ended a request early")
        return seconds

    def close(self) -> None:
        """See `Peer`."""
        self._model = None
        _free()


class ContinuousPeer:
    """``model.generate_batch`` with one manager that stays. See `Peer`."""

    def __init__(self, settings: PeerSettings) -> None:
        from transformers import GenerationConfig
        from transformers.generation import ContinuousBatchingConfig

        self._model: Any = _load(settings)
        self._model.set_attn_implementation("paged|sdpa")
        self._generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._generation.max_new_tokens = settings.warm_up_tokens[1]
        self._batching = ContinuousBatchingConfig(
            allow_block_sharing=False,  # its prefix cache
            use_cuda_graph=settings.device.startswith("cuda"),  # off by itself with this attention, and 7 times slower
            max_batch_tokens=settings.max_num_batched_tokens,
            max_memory_percent=0.8,
        )
        # The manager is sized by its first call, so the largest comes first.
        prompt = [1] * settings.warm_up_tokens[0]
        self.generate_seconds([prompt] * settings.max_num_reqs, settings.warm_up_tokens[1])

    def generate_seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """See `Peer`."""
        began = time.perf_counter()
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=self._generation,
            continuous_batching_config=self._batching,
            max_new_tokens=num_tokens,
            progress_bar=False,
            persistent_manager=True,
        )
        seconds = time.perf_counter() - began
        if len(outputs) != len(prompts) or any(len(o.generated_tokens) != num_tokens for o in outputs.values()):
            raise RuntimeError("transformers ended a request early")
        return seconds

    def close(self) -> None:
        """See `Peer`."""
        destroy = getattr(self._model, "destroy_cached_continuous_batching_manager", None)
        if destroy is not None:
            destroy()
        self._model = None
        _free()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free() -> None:
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
