"""Any PyTorch callable on graphs, with no engine in sight: warm up, capture, call, explain, close.

    python examples/01_any_module.py [--device auto|cpu|cuda]

Without a GPU the graphs are simulated on the CPU, under the same rules.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from ostinato import GraphConfig, Graphed

WIDTH = 256
SIZES = (1, 2, 4, 8, 16)  # the buckets: one graph is captured for each of these numbers of rows


def make_mlp(device: torch.device) -> nn.Module:
    """Four layers: on a GPU, launching them takes longer than running them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device).eval()


@torch.inference_mode()
def main(device: torch.device) -> None:
    """Capture the module, then call it with sizes that fit a bucket, need padding, or are too large."""
    mlp = make_mlp(device)
    example = torch.randn(max(SIZES), WIDTH, device=device)  # gives names, shapes, dtypes and the device

    with Graphed(mlp, example=(example,), config=GraphConfig(mode="full", sizes=SIZES)) as graphed:
        # Costly steps have verbs of their own. Warm-up lets everything compile and initialise before capture.
        graphed.warm_up()
        report = graphed.capture()
        print(f"captured {len(report.captured)} graphs in {report.seconds:.2f} s on {device}\n")

        for num_rows in (1, 3, 8, 13, 16, 40):
            x = torch.randn(num_rows, WIDTH, device=device)
            print(f"{num_rows:>3} rows: {graphed.explain(x)}")  # asks; runs nothing
            y = graphed(x)  # copied in, padded, replayed, sliced back
            torch.testing.assert_close(y, mlp(x))

        # Every step was counted: how it ran, in which bucket and why.
        counts = graphed.counters.snapshot()
        print(f"\n{counts['steps']} steps: {counts['by_runtime_mode']}, because {counts['by_reason']}")
        print(f"padding: {counts['padded_tokens']} rows for {counts['live_tokens']} live ones")
        print(f"\nmemory by owner:\n{graphed.memory()}")

        assert counts["by_runtime_mode"] == {"FULL": 5, "EAGER": 1}
        assert counts["by_reason"] == {"EXACT": 3, "PADDED": 2, "OVER_LARGEST": 1}
    print("\nevery answer equals eager")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    chosen = parser.parse_args().device
    if chosen == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    main(torch.device(chosen))
