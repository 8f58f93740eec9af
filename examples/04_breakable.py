"""A function that no graph can hold, and the one mark that makes the rest of the model replayable.

    python examples/04_breakable.py [--device auto|cpu|cuda]

Each row is sent to one of several experts. Which rows an expert gets depends on the data, so neither the
shapes nor the kernels are known at capture. `graph_break` runs that function eagerly between two captured
segments; what it returns is handed to the next segment at a fixed address.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ostinato import GraphConfig, Graphed, graph_break
from ostinato.errors import CaptureError

WIDTH = 64
NUM_EXPERTS = 4
SIZES = (4, 8, 16)


class Experts(nn.Module):
    """A small mixture of experts around a router that reads its input on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.router = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS))
        self.after = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8))

    def route(self, hidden: Tensor, expert_of: Tensor) -> Tensor:
        """Run each expert on its own rows. hidden: [num_rows, WIDTH]; expert_of: [num_rows]."""
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (expert_of == number).nonzero().squeeze(1)  # how many? only the data knows
            if len(rows):
                out[rows] = expert(hidden[rows])
        return out

    def run(self, x: Tensor, route: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The whole model. x: [num_rows, WIDTH] -> [num_rows, 8]."""
        hidden = self.before(x)
        return self.after(hidden + route(hidden, self.router(hidden).argmax(-1)))


@torch.inference_mode()
def main(device: torch.device) -> None:
    """Try it without the mark, then with it."""
    torch.manual_seed(0)
    model = Experts().to(device).eval()
    example = torch.randn(max(SIZES), WIDTH, device=device)
    marked = graph_break(model.route)  # usually a decorator: @graph_break

    def without_mark(x: Tensor) -> Tensor:
        return model.run(x, model.route)

    def with_mark(x: Tensor) -> Tensor:
        return model.run(x, marked)

    # Without a mark the capture is refused by name, and not recorded wrongly.
    with Graphed(without_mark, example=(example,), config=GraphConfig(mode="full", sizes=(16,))) as graphed:
        graphed.warm_up()
        try:
            graphed.capture()
        except CaptureError as error:
            print(f"without a break: {type(error).__name__}: {error}\n")
        else:
            raise AssertionError("a data-dependent function was captured")

    with Graphed(with_mark, example=(example,), config=GraphConfig(mode="piecewise", sizes=SIZES)) as graphed:
        graphed.warm_up()
        graphed.capture()
        for key, plan in graphed.plans.items():
            print(f"{key}: {plan.num_segments} segments of {plan.num_nodes} nodes in all, {len(plan.breaks)} break")
            assert (plan.num_segments, len(plan.breaks)) == (2, 1)
        for num_rows in (1, 4, 7, 11, 16):
            x = torch.randn(num_rows, WIDTH, device=device)
            torch.testing.assert_close(graphed(x), without_mark(x))  # each time, rows go to other experts
            print(f"{num_rows:>3} rows: {graphed.explain(x)}")
        assert graphed.counters.by_runtime_mode == {"PIECEWISE": 5}
    print("\nevery answer equals eager")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    chosen = parser.parse_args().device
    if chosen == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    main(torch.device(chosen))
