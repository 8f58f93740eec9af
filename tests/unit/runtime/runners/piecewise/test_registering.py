"""A traced callable that puts a buffer into its module at each step, as ``self.count += 1`` does."""

import torch
from torch import nn

from ostinato.runtime import GraphConfig, Graphed, graph_break

X = torch.ones(4, 2)


@graph_break
def attend(x):
    return x + 1


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return attend(x * 2) * 3


def test_it_is_traced_once_and_counts():
    model = Counting()
    config = GraphConfig(mode="piecewise", partition="fx", sizes=(2, 4))
    with torch.no_grad(), Graphed(model, example=(X,), config=config) as graphed:
        graphed.warm_up().capture()
        model.count.zero_()
        for _ in range(3):
            assert torch.equal(graphed(X), (X * 2 + 1) * 3)
        assert model.count == 3 and graphed.counters.by_runtime_mode == {"PIECEWISE": 3}
