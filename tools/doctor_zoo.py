"""What the doctor says about models of `transformers` that nobody here wrote: the table of docs/doctor.md.

    python tools/doctor_zoo.py [--json] [NAME ...]

Weights are random and configs tiny, so it needs `transformers` and no network. Batches differ between rows, so
that what follows the data is found. One Markdown row a model; the versions come first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from ostinato.errors import OstinatoError
from ostinato.runtime import Diagnosis, ModeOutcome, diagnose

Call = tuple[Callable[..., Any], tuple[Any, ...]]

VOCAB = 128
TEXT = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def ids(rows: int = 4, length: int = 12) -> torch.Tensor:
    """[rows, length] token ids."""
    return torch.randint(3, VOCAB, (rows, length))


def padded_mask(rows: int = 4, length: int = 12) -> torch.Tensor:
    """[rows, length] ones, with padding on the right that differs from row to row."""
    return (torch.arange(length) < torch.arange(length, length - rows, -1)[:, None]).long()


def text(model_class: str, config_class: str, *, with_mask: bool = False, **config: Any) -> Call:
    """A model of token ids, without a cache; ``with_mask`` pads its rows."""
    made = getattr(transformers, config_class)(**config)
    model = getattr(transformers, model_class)(made).eval()
    options = {"use_cache": False} if getattr(made, "use_cache", False) else {}

    def step(input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return model(input_ids, attention_mask=attention_mask, **options)[0]

    return step, (ids(), padded_mask()) if with_mask else (ids(),)


def pixels(model_class: str, config_class: str, *, size: int = 32, **config: Any) -> Call:
    """A model of images."""
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**config)).eval()

    def step(pixel_values: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=pixel_values)[0]

    return step, (torch.randn(4, 3, size, size),)


def t5() -> Call:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()

    def step(input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits

    return step, (ids(), ids(length=5))


def bart() -> Call:
    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 96))}
    config = transformers.BartConfig(
        vocab_size=VOCAB, d_model=64, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes,
    )  # fmt: skip
    model = transformers.BartModel(config).eval()

    def step(input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids, attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False)[0]

    return step, (ids(), padded_mask(), ids(length=5))


def whisper_encoder() -> Call:
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=16,
        max_source_positions=32, max_target_positions=32, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=0, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    encoder = transformers.WhisperModel(config).eval().encoder

    def step(features: torch.Tensor) -> torch.Tensor:
        return encoder(features)[0]

    return step, (torch.randn(4, 16, 64),)


def clip() -> Call:
    part = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": VOCAB, "max_position_embeddings": 32, "eos_token_id": 2},
        vision_config={**part, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    model = transformers.CLIPModel(config).eval()

    def step(input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, pixel_values=pixel_values).logits_per_image

    return step, (ids(), torch.randn(4, 3, 32, 32))


def detr() -> Call:
    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, num_queries=10, num_labels=5,
    )  # fmt: skip
    model = transformers.DetrForObjectDetection(config).eval()

    def step(pixel_values: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=pixel_values).logits

    return step, (torch.randn(4, 3, 64, 64),)


def gpt2_with_cache() -> Call:
    """One decode step over a cache object that grows: what a naive capture of generate() would meet."""
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=256)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        cache = model(ids(), use_cache=True).past_key_values

    def step(input_ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids, past_key_values=cache, use_cache=True).logits

    return step, (ids(length=1),)


ZOO: dict[str, Callable[[], Call]] = {
    "Llama": lambda: text("LlamaForCausalLM", "LlamaConfig", **TEXT, **HEADS),
    "Llama, padded batch": lambda: text("LlamaForCausalLM", "LlamaConfig", with_mask=True, **TEXT, **HEADS),
    "GPT-2": lambda: text("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4),
    "GPT-2, decode with DynamicCache": gpt2_with_cache,
    "BERT, padded batch": lambda: text("BertModel", "BertConfig", with_mask=True, num_attention_heads=4, **TEXT),
    "Mixtral": lambda: text(
        "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, experts_implementation="eager", **TEXT, **HEADS
    ),
    "Mixtral, grouped_mm experts": lambda: text(
        "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, experts_implementation="grouped_mm", **TEXT, **HEADS
    ),
    "Qwen2-MoE": lambda: text(
        "Qwen2MoeForCausalLM", "Qwen2MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
        shared_expert_intermediate_size=48, experts_implementation="eager", **TEXT, **HEADS,
    ),
    "Mamba": lambda: text("MambaForCausalLM", "MambaConfig", vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2),
    "Mamba-2": lambda: text(
        "Mamba2ForCausalLM", "Mamba2Config", vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_heads=8,
        head_dim=16, n_groups=2, state_size=16, chunk_size=8,
    ),
    "T5 encoder-decoder": t5,
    "BART encoder-decoder, padded batch": bart,
    "Whisper encoder": whisper_encoder,
    "ViT": lambda: pixels(
        "ViTModel", "ViTConfig", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8,
    ),
    "CLIP": clip,
    "DETR": detr,
}  # fmt: skip


def main() -> None:
    """Print the table of all models, or of those named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--json", action="store_true", help="whole diagnoses instead of rows")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, {options.device}"
    if not options.json:
        print(f"{datetime.date.today()}: {versions}\n")
        print("| model | verdict | what and where | suggested breaks | full | piecewise (fx) | breakable | s |")
        print("|---|---|---|---|---|---|---|---|")
    for name in options.names or ZOO:
        torch.manual_seed(0)
        began = time.perf_counter()
        with torch.device(options.device):
            fn, args = ZOO[name]()
        try:
            diagnosis = diagnose(fn, args)
        except OstinatoError as error:
            print(f"| {name} | error | {error} | | | | | |", flush=True)
            continue
        seconds = time.perf_counter() - began
        if options.json:
            print(json.dumps({"model": name, "seconds": seconds, **diagnosis.to_dict()}), flush=True)
        else:
            print(row(name, diagnosis, seconds), flush=True)
    sys.stdout.flush()


def row(name: str, diagnosis: Diagnosis, seconds: float) -> str:
    """One Markdown row."""
    whats = [
        f"{op.op} x{op.count}, {op.reason} ({short(op.file)}:{op.line})"
        for op in diagnosis.ops
        if op.verdict.value != "friendly"
    ]
    shown = "; ".join(whats[:4]) + (f"; {len(whats) - 4} more" if len(whats) > 4 else "")
    breaks = ", ".join(f"{b.function} ({short(b.file)}:{b.line})" for b in diagnosis.suggested_breaks)
    if breaks and diagnosis.advice:
        breaks += f"; {diagnosis.advice[0].partition(';')[0]}"
    if not breaks and diagnosis.is_blocked:
        breaks = f"none found: {diagnosis.advice[0]}" if diagnosis.advice else "none found"
    cells = [cell(diagnosis.modes[mode]) for mode in ("full", "piecewise", "breakable")]
    return f"| {name} | {diagnosis.verdict.value} | {shown} | {breaks} | {' | '.join(cells)} | {seconds:.0f} |"


def cell(outcome: ModeOutcome) -> str:
    """``works`` with its segments, or why it does not."""
    if not outcome.is_captured:
        return f"no: {(outcome.error or {}).get('type', '')}"
    segments = f"{outcome.num_segments} segment" + ("s" if outcome.num_segments != 1 else "")
    return f"{segments}, but it holds blockers" if outcome.holds_blockers else f"{segments}, replay {outcome.replay}"


def short(file: str) -> str:
    """The file's name, without the folders that differ between machines."""
    return "/".join(file.rsplit("/", 1)[-1:])


if __name__ == "__main__":
    main()
