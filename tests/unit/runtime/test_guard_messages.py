"""What an error of the guards says besides the name: the segment that reads the tensor, and since when it is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.errors import AddressChangedError, TensorDroppedError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.buffers.replay_guards import PER_STEP

WIDTH = 4
X = torch.ones(2, WIDTH)


@graph_break
def attend(x, table=None):
    return x.clone() if table is None else x + table


class InPieces(nn.Module):
    """Three segments: between the first two breaks stands no work but a view, so nothing there."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.ones(WIDTH) for _ in range(3))
        self.of_break = torch.ones(WIDTH)
        self.hidden = SimpleNamespace(table=torch.ones(WIDTH))

    def forward(self, x):
        x = attend(x + self.first)
        x = attend(x.view(-1, WIDTH), self.of_break)
        x = attend(x * self.second)
        return x * self.third + self.hidden.table


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def captured(fn, **settings):
    graphed = Graphed(fn, example=(X,), config=GraphConfig(sizes=(2,), **settings))
    return graphed.warm_up().capture() and graphed


def fault_of(call, error=AddressChangedError):
    with pytest.raises(error) as raised:
        call()
    return raised.value.context


@pytest.mark.parametrize("partition", ["breakable", "fx"])
@pytest.mark.parametrize(
    ("name", "segment"),
    [("first", "0"), ("second", "1"), ("third", "2"), ("of_break", "break attend before 1")],
)
def test_the_segment_is_the_one_that_used_it_first(name, segment, partition):
    model = InPieces()
    with captured(model, mode="piecewise", partition=partition) as graphed:
        (plan,) = graphed.plans.values()
        assert plan.num_segments == 3
        graphed(X)
        setattr(model, name, torch.zeros(WIDTH))
        context = fault_of(lambda: graphed(X))
        assert (context["tensor"], context["segment"]) == (name, segment)


def test_a_dropped_tensor_has_its_segment_too():
    model = InPieces()
    with captured(model, mode="piecewise") as graphed:
        model.hidden.table = torch.zeros(WIDTH)
        assert fault_of(lambda: graphed(X), TensorDroppedError)["segment"] == "2"


def test_a_full_graph_is_segment_0():
    model = InPieces()
    with captured(model, mode="full") as graphed:
        model.third = torch.zeros(WIDTH)
        assert fault_of(lambda: graphed(X))["segment"] == "0"


def test_a_stated_tensor_that_no_op_was_seen_to_read():
    state = {"table": torch.ones(WIDTH)}
    config = GraphConfig(sizes=(2,))
    with Graphed(lambda x: x * 2, example=(X,), config=config, state=state) as graphed:
        graphed.warm_up().capture()
        state["table"] = torch.zeros(WIDTH)
        assert fault_of(lambda: graphed(X))["segment"].startswith("unknown")


@pytest.mark.parametrize(
    ("num_steps", "since"), [(0, "between its capture and check 1"), (5, "between check 5 and check 6")]
)
def test_what_is_looked_at_each_time_is_dated_to_the_step(num_steps, since):
    model = InPieces()
    with captured(model) as graphed:
        for _ in range(num_steps):
            graphed(X)
        model.third = torch.zeros(WIDTH)
        for _ in range(2):  # told again, it is as old
            assert fault_of(lambda: graphed(X))["since"] == f"{since} of this key"


@pytest.mark.parametrize("num_steps", range(12))
def test_what_is_looked_at_in_rotation_is_dated_to_its_last_turn(num_steps):
    """Dates are told right wherever the rotation stands: the tensor was right at the first, and is not at the last."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3 * PER_STEP)]
    model = nn.Sequential(*layers)
    with captured(model) as graphed:
        for _ in range(num_steps):
            graphed(X)
        layers[2 * PER_STEP].weight.data = torch.zeros(WIDTH, WIDTH)  # its group has the third turn of three
        passed = 0

        def until_it_is_seen():
            nonlocal passed
            for _ in range(3):
                graphed(X)
                passed += 1

        context = fault_of(until_it_is_seen)
        seen_at = num_steps + passed + 1
        assert seen_at % 3 == 0
        last = f"check {seen_at - 3}" if seen_at > 3 else "its capture"
        assert context["since"] == f"between {last} and check {seen_at} of this key"


def test_a_look_at_everything_counts():
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3 * PER_STEP)]
    with captured(nn.Sequential(*layers)) as graphed:
        for _ in range(4):
            graphed(X)
        graphed.check_guards()
        layers[0].weight.data = torch.zeros(WIDTH, WIDTH)
        assert fault_of(graphed.check_guards)["since"] == "between check 4 and check 5 of this key"


def test_a_layout_is_dated_to_its_own_turn():
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    with captured(nn.Sequential(*layers)) as graphed:
        for _ in range(4):
            graphed(X)
        layers[0].weight.t_()  # layouts take turns: this one at checks 1, 3, 5
        assert fault_of(lambda: graphed(X))["since"] == "between check 3 and check 5 of this key"


def test_a_refused_step_is_refused_again():
    """Else whoever drops the error would have a wrong answer from the next step, which looks at other tensors."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3 * PER_STEP)]
    with captured(nn.Sequential(*layers), failures_to_quarantine=0) as graphed:
        layers[0].weight.data = torch.zeros(WIDTH, WIDTH)
        for _ in range(5):
            fault_of(lambda: graphed(X))
