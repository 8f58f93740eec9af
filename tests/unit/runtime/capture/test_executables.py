"""Sharing by itself, with a made-up device; and what a backend tells it about random numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ostinato.errors import CaptureError, DeviceUnavailableError, UnknownNameError
from ostinato.runtime import GraphConfig, Graphed, graph_break, opaque_op
from ostinato.runtime.capture import cuda_executable, select_backend
from ostinato.runtime.capture.executables import Executables
from ostinato.runtime.ops import draws


class Instance:
    """Takes every source of its own letter but those that it is told to refuse."""

    def __init__(self, source):
        self.made_of = self.holds = source
        self.refuses, self.log, self.is_destroyed = set(), [], False

    def update(self, source):
        can_take = source[0] == self.made_of[0] and source not in self.refuses
        self.holds = source if can_take else None
        return can_take

    def launch(self):
        self.log.append(self.holds)

    def destroy(self):
        self.is_destroyed = True


@pytest.fixture
def made():
    """``new`` makes `Executables`; ``instances`` are what these have made."""
    instances = []

    def instantiate(source):
        instances.append(Instance(source))
        return instances[-1]

    return SimpleNamespace(
        instances=instances, new=lambda is_shared=True: Executables(instantiate, is_shared=is_shared)
    )


def place(executables, *sources, num_nodes=3, draws=False):
    """Each source is the first graph of a plan."""
    found = []
    for source in sources:
        executables.begin_plan()
        found.append(executables.place(source, num_nodes, draws=draws))
    return found


def test_a_replay_updates_only_if_another_graph_is_held(made):
    one, two = place(executables := made.new(), "a1", "a2")
    for placement in (one, one, two, two, one):
        placement.replay()
    assert made.instances[0].log == ["a1", "a1", "a2", "a2", "a1"]
    assert executables.counts().to_dict() == {"count": 1, "nodes": 3, "shared_groups": 1, "switches": 2}


def test_a_graph_that_the_device_does_not_take_gets_its_own_at_capture(made):
    one, other, two = place(executables := made.new(), "a1", "b1", "a2")
    one.replay()
    other.replay()
    two.replay()
    assert [instance.log for instance in made.instances] == [["a1", "a2"], ["b1"]]
    assert executables.counts().num_executables == 2 and executables.counts().num_shared_groups == 1


def test_after_a_refused_try_what_is_held_is_not_trusted(made):
    (one,) = place(executables := made.new(), "a1")
    place(executables, "b1")
    assert made.instances[0].holds is None, "the made-up device forgets, as a device may"
    one.replay()
    assert made.instances[0].log == ["a1"]


def test_a_graph_that_cannot_be_left_again_does_not_join(made):
    (one,) = place(executables := made.new(), "a1")
    made.instances[0].refuses = {"a1"}
    place(executables, "a2")
    assert executables.counts().num_executables == 2
    made.instances[0].refuses = set()
    one.replay()
    assert made.instances[0].log == ["a1"]


def test_an_update_that_is_refused_at_replay_is_an_error_and_launches_nothing(made):
    one, two = place(made.new(), "a1", "a2")
    made.instances[0].refuses = {"a2"}
    with pytest.raises(CaptureError, match="refused to update a shared executable Fix: use executables='own'"):
        two.replay()
    one.replay()
    assert made.instances[0].log == ["a1"]


def test_only_graphs_at_the_same_place_of_their_plans_share(made):
    executables = made.new()
    for plan in ("1", "2"):
        executables.begin_plan()
        for segment in "xyz":
            assert executables.place("a" + segment + plan, 3, draws=False) is not None
    assert [instance.made_of for instance in made.instances] == ["ax1", "ay1", "az1"]
    assert executables.counts().num_shared_groups == 3


def test_empty_graphs_keep_their_place_and_have_no_executable(made):
    executables = made.new()
    for first in (0, 3):
        executables.begin_plan()
        assert (executables.place("a1", first, draws=False) is None) == (first == 0)
        executables.place("a2", 3, draws=False)
    assert executables.counts().to_dict() == {"count": 2, "nodes": 6, "shared_groups": 1, "switches": 0}


def test_own_ones_are_only_counted(made):
    executables = made.new(is_shared=False)
    assert place(executables, "a1", "a2") == [None, None] and made.instances == []
    assert executables.counts().to_dict() == {"count": 2, "nodes": 6, "shared_groups": 0, "switches": 0}
    executables.close(None, 3)
    executables.close(None, 0)
    assert executables.counts().num_executables == 1


def test_what_is_closed_is_let_go_of_and_its_switches_stay_counted(made):
    one, two = place(executables := made.new(), "a1", "a2")
    two.replay()
    executables.close(two, 3)
    assert made.instances[0].holds == "a1" and not made.instances[0].is_destroyed
    executables.close(one, 3)
    assert made.instances[0].is_destroyed
    assert executables.counts().to_dict() == {"count": 0, "nodes": 0, "shared_groups": 0, "switches": 1}
    (again,) = place(executables, "a3")
    again.replay()
    assert made.instances[1].log == ["a3"]


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "expected"),
    [
        (torch.ops.aten.rand_like.default, (torch.ones(1),), {}, True),
        (torch.ops.aten.add.Tensor, (torch.ones(1), 1), {}, False),
        (torch.ops.aten._scaled_dot_product_flash_attention.default, (torch.ones(1),) * 3, {}, False),
        (torch.ops.aten._scaled_dot_product_flash_attention.default, (torch.ones(1),) * 3, {"dropout_p": 0.1}, True),
        (torch.ops.aten._scaled_dot_product_flash_attention.default, (*(torch.ones(1),) * 3, 0.1), {}, True),
    ],
)
def test_which_calls_draw(op, args, kwargs, expected):
    assert draws(op, args, kwargs) is expected


def test_drawing_that_no_watch_sees_is_seen_by_the_generator():
    @opaque_op(fake=torch.empty_like)
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    x = torch.zeros(8, 4)
    for fn, expected in ((lambda x: hidden(x) * 2, 3), (lambda x: (x + 1) * 2, 1)):
        config = GraphConfig(mode="full", sizes=(2, 4, 8), executables="shared")
        with Graphed(fn, example=(x,), config=config) as graphed:
            graphed.warm_up()
            graphed.capture()
            assert graphed.backend.executables().num_executables == expected


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_answers_are_those_of_own_executables(mode):
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    middle = graph_break(lambda h: h * 2)
    x = torch.randn(8, 4)
    answers, counts = {}, {}
    for setting in ("own", "shared"):
        config = GraphConfig(mode=mode, sizes=(2, 4, 8), executables=setting)
        with torch.no_grad(), Graphed(lambda x: last(middle(first(x))), example=(x,), config=config) as graphed:
            graphed.warm_up()
            graphed.capture()
            answers[setting] = [graphed(x[:rows]) for rows in (8, 1, 5, 3, 3, 2, 7)]
            assert "EAGER" not in graphed.counters.by_runtime_mode
            graphed.resize(sizes=(3, 8))
            answers[setting] += [graphed(x[:rows]) for rows in (8, 1, 5, 3)]
            counts[setting] = graphed.backend.executables()
            graphed.recapture()
            answers[setting] += [graphed(x[:rows]) for rows in (2, 8)]
            assert graphed.qualify().passed
    assert all(torch.equal(a, b) for a, b in zip(answers["own"], answers["shared"], strict=True))
    num_segments = 1 if mode == "full" else 2
    assert (counts["own"].num_executables, counts["shared"].num_executables) == (2 * num_segments, num_segments)
    assert counts["own"].num_switches == 0 < counts["shared"].num_switches


def test_an_unknown_setting_lists_the_valid_ones():
    with pytest.raises(UnknownNameError, match="valid: own, shared"):
        GraphConfig(executables="some")


def test_a_driver_without_updates_is_named(monkeypatch):
    monkeypatch.setattr(cuda_executable, "driver", lambda: SimpleNamespace(cuGraphInstantiateWithFlags=None))
    with pytest.raises(DeviceUnavailableError, match=r"no cuGraphExecUpdate_v2.*CUDA 12.0 or later"):
        cuda_executable.require_updates()


def test_graphs_have_their_own_unless_asked():
    assert select_backend("cpu").executables().to_dict() == {"count": 0, "nodes": 0, "shared_groups": 0, "switches": 0}
