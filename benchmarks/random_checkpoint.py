"""A checkpoint of random bfloat16 weights on disk, for starts that read real files where none can be downloaded.

``python benchmarks/random_checkpoint.py --model benchmarks/models/llama-3.2-1b --out DIR --shards 4`` writes
config.json, safetensors shards and their index, and the tests' small tokenizer, which loads faster than a real one.
``ostinato bench startup --model DIR`` then reads them; right after they were written they are in the page cache.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ostinato.engine.models import ModelConfig, build_model
from ostinato.engine.text.json_file import read_json_object
from ostinato.testing.tiny_tokenizer import write_tiny_tokenizer

SPREAD = 0.02
DRAWN = 1 << 20  # numbers of a tensor


def shapes_of(config: dict[str, object]) -> dict[str, torch.Size]:
    """Every tensor of a checkpoint of ``config``, in the order of its layers."""
    model = build_model(ModelConfig.from_hf(config), device="meta", dtype=torch.bfloat16)
    return {name: target.shape for name, target in model._checkpoint_targets()}


def shards_of(shapes: dict[str, torch.Size], num_shards: int) -> list[list[str]]:
    """Names by shard, in order, of about the same number of elements each; none is empty."""
    total, done = sum(shape.numel() for shape in shapes.values()), 0
    shards: list[list[str]] = [[] for _ in range(num_shards)]
    for name, shape in shapes.items():
        shards[min(done * num_shards // total, num_shards - 1)].append(name)
        done += shape.numel()
    return [shard for shard in shards if shard]


def tensor_of(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Random, but for norms: around one. Drawn once and repeated, since a start reads bytes and not numbers."""
    numel = shape.numel()
    drawn = torch.empty(min(numel, DRAWN), dtype=torch.bfloat16).normal_(0, SPREAD, generator=generator)
    values = drawn.repeat(-(-numel // len(drawn)))[:numel].clone().view(shape)
    return values + 1 if "norm" in name else values


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder with the config.json of the shape")
    parser.add_argument("--out", required=True, type=Path, help="folder that is made")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.shards < 1:
        parser.error("--shards is at least 1")
    config = read_json_object(given.model / "config.json")
    shapes = shapes_of(config)
    shards = shards_of(shapes, given.shards)
    generator = torch.Generator().manual_seed(given.seed)
    given.out.mkdir(parents=True)  # never among other files
    weight_map, total = {}, 0
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: tensor_of(name, shapes[name], generator) for name in names}
        save_file(tensors, given.out / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    for name, content in (("model.safetensors.index.json", index), ("config.json", config)):
        (given.out / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_tiny_tokenizer(given.out)
    print(f"{len(shapes)} tensors, {total / 2**20:,.0f} MiB in {len(shards)} shards: {given.out}")


if __name__ == "__main__":
    main()
