"""A tensor that a graph reads moves, is replaced or is dropped: the next replay says so by name."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ostinato.errors import AddressChangedError, TensorDroppedError, TensorReboundError
from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.buffers.replay_guards import PER_STEP

WIDTH = 4
X = torch.ones(2, WIDTH)


class Model(nn.Module):
    def __init__(self, num_layers=1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))
        self.register_buffer("scale", torch.full((WIDTH,), 2.0))
        self.shift = torch.ones(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.shift


def captured(fn, **settings):
    graphed = Graphed(fn, example=(X,), config=GraphConfig(sizes=(2,), **settings))
    graphed.warm_up()
    graphed.capture()
    return graphed


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def rebind_parameter(model):
    model.layers[0].weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))


def rebind_buffer(model):
    model.scale = torch.zeros(WIDTH)


def rebind_plain(model):
    model.shift = torch.zeros(WIDTH)


def rebind_past_torch(model):
    model.layers[0]._parameters["weight"] = nn.Parameter(torch.zeros(WIDTH, WIDTH))


def move_data(model):
    model.layers[0].weight.data = torch.zeros(WIDTH, WIDTH)


def replace_layer(model):
    model.layers[0] = nn.Linear(WIDTH, WIDTH)


def transpose_in_place(model):
    model.layers[0].weight.t_()


CHANGES = [
    (rebind_parameter, TensorReboundError, "layers.0.weight"),
    (rebind_buffer, TensorReboundError, "scale"),
    (rebind_plain, TensorReboundError, "shift"),
    (rebind_past_torch, TensorReboundError, "layers.0.weight"),
    (move_data, AddressChangedError, "layers.0.weight"),
    (transpose_in_place, AddressChangedError, "layers.0.weight"),
]


@pytest.mark.parametrize("level", ["always", "sampled"])
@pytest.mark.parametrize(("change", "error", "name"), CHANGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_change_is_named(change, error, name, level):
    model = Model()
    with captured(model, guards=level) as graphed:
        graphed(X)
        change(model)
        with pytest.raises(error, match=f"{name} .* Fix: .*recapture") as raised:
            for _ in range(4):  # one weight's layout is looked at in a step
                graphed(X)
        assert raised.value.context["key"] == "FULL tokens=2"
        graphed.recapture()
        assert torch.equal(graphed(X), model(X))


def test_values_may_change_in_place():
    model = Model()
    with captured(model) as graphed:
        model.load_state_dict(Model().state_dict())
        model.shift.zero_()
        assert torch.equal(graphed(X), model(X))


def test_without_guards_the_old_values_are_read_in_silence():
    model = Model()
    with captured(model, guards="off") as graphed:
        old = model.layers[0].weight
        before = graphed(X)
        rebind_parameter(model)
        assert torch.equal(graphed(X), before) and not torch.equal(before, model(X))
        assert old is not model.layers[0].weight


def test_many_weights_are_all_seen_within_a_round():
    model = Model(num_layers=10)
    with captured(model) as graphed:
        model.layers[9].bias.data = torch.zeros(WIDTH)  # torch tells nobody
        with pytest.raises(AddressChangedError, match=r"layers\.9\.bias moved"):
            for _ in range(-(-21 // PER_STEP)):
                graphed(X)
        with pytest.raises(AddressChangedError):
            graphed.check_guards()


@pytest.mark.parametrize("layer", range(4))
def test_a_layout_is_seen_wherever_it_stands_in_the_rotation(layer):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2 * PER_STEP)))
    with captured(model) as graphed:
        model[layer].weight.t_()  # in place: the address and the tensor stay
        with pytest.raises(AddressChangedError, match=rf"{layer}\.weight has another shape"):
            for _ in range(2 * PER_STEP):
                graphed(X)


def test_a_registered_change_is_seen_at_once_among_many():
    model = Model(num_layers=10)
    with captured(model) as graphed:
        model.layers[9].bias = nn.Parameter(torch.zeros(WIDTH))
        with pytest.raises(TensorReboundError, match=r"layers\.9\.bias is another tensor"):
            graphed(X)


def test_a_replaced_submodule_is_seen():
    """Its parameters stand where they stood, in a module that the callable no longer calls."""
    model = Model()
    with captured(model) as graphed:
        before = graphed(X)
        replace_layer(model)
        with pytest.raises(TensorReboundError, match=r"layers\.0\."):
            graphed(X)
        del before


@pytest.mark.parametrize("home", ["closure", "mapping", "list", "object"])
def test_a_replaced_module_is_seen_wherever_the_callable_has_it(home):
    """Built before the capture, so that torch tells nobody when it is swapped in."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    module, mapping, several = first, {"m": first}, [first]

    class Holder:
        pass

    holder = Holder()
    holder.m = first
    callables = {
        "closure": lambda x: module(x),
        "mapping": lambda x: mapping["m"](x),
        "list": lambda x: several[0](x),
        "object": lambda x: holder.m(x),
    }
    with captured(callables[home]) as graphed:
        graphed(X)
        module = mapping["m"] = several[0] = holder.m = second
        with pytest.raises(TensorReboundError, match=r"weight|bias"):
            graphed(X)
        graphed.recapture()
        assert torch.equal(graphed(X), second(X))


def test_a_replaced_attribute_of_an_object_at_hand():
    class Table:
        def __init__(self):
            self.rows = torch.ones(WIDTH)

    table = Table()
    old = table.rows  # somebody holds it: nothing is dropped
    with captured(lambda x: x + table.rows) as graphed:
        graphed(X)
        table.rows = torch.zeros(WIDTH)
        with pytest.raises(TensorReboundError, match=r"table\.rows"):
            graphed(X)
        del old


def test_a_tensor_that_a_break_is_given():
    holder = {"table": torch.ones(WIDTH)}

    @graph_break
    def add(x, table):
        return x + table

    def fn(x):
        return add(x * 2, holder["table"]) * 1

    with captured(fn, mode="piecewise") as graphed:
        graphed(X)
        holder["table"] = torch.zeros(WIDTH)
        with pytest.raises(TensorReboundError, match=r"holder\['table'\]"):
            graphed(X)


@pytest.mark.parametrize("level", ["always", "sampled"])
def test_containers_in_containers_are_seen_while_somebody_keeps_the_old_tensor(level):
    """As a KV cache often lies: a list of pairs."""
    model = Model()
    model.pairs = [(torch.ones(WIDTH), torch.ones(WIDTH)), (torch.ones(WIDTH), torch.ones(WIDTH))]
    model.deep = [{"a": [torch.ones(WIDTH)]}]
    model.itself = [1]
    model.itself.append(model.itself)
    forward = model.forward
    model.forward = lambda x: forward(x) + model.pairs[1][0] + model.deep[0]["a"][0]
    old = [model.pairs[1], model.deep[0]["a"][0]]
    for change, name in (
        (lambda: model.pairs.__setitem__(1, (torch.zeros(WIDTH), old[0][1])), r"pairs\[1\]\[0\]"),
        (lambda: model.deep[0]["a"].__setitem__(0, torch.zeros(WIDTH)), r"deep\[0\]\['a'\]\[0\]"),
    ):
        with captured(model, guards=level) as graphed:
            graphed(X)
            change()
            with pytest.raises(TensorReboundError, match=name):
                for _ in range(4):
                    graphed(X)


def test_a_dropped_tensor_without_a_place():
    class Lookup:
        def __init__(self):
            self.inner = SimpleNamespace(table=torch.ones(WIDTH))  # an object in an object has no name

        def __call__(self, x):
            return x + self.inner.table

    lookup = Lookup()
    with captured(lookup) as graphed:
        graphed(X)
        lookup.inner.table = torch.zeros(WIDTH)
        gc.collect()
        with pytest.raises(TensorDroppedError, match=r"used by aten::add at .*test_replay_guards.py"):
            graphed(X)


def test_a_view_that_dies_while_its_memory_lives_is_no_fault():
    whole = torch.ones(2 * WIDTH)

    class Views:
        def __init__(self):
            self.inner = SimpleNamespace(part=whole[:WIDTH])

        def __call__(self, x):
            return x + self.inner.part

    views = Views()
    with captured(views) as graphed:
        views.inner.part = whole[:WIDTH]  # the same memory under another object
        gc.collect()
        whole.fill_(7)
        assert torch.equal(graphed(X), X + 7)


def test_stated_tensors_are_guarded_unseen():
    """What a kernel launched by hand reads, no dispatcher shows."""
    model = Model()

    def fn(x):
        return x * 2

    graphed = Graphed(fn, example=(X,), config=GraphConfig(sizes=(2,)), state=model)
    with graphed:
        graphed.warm_up()
        graphed.capture()
        graphed(X)
        rebind_parameter(model)
        with pytest.raises(TensorReboundError, match=r"layers\.0\.weight"):
            graphed(X)


def test_one_key_does_not_answer_for_another():
    tables = {2: torch.ones(WIDTH), 4: torch.full((WIDTH,), 3.0)}

    def fn(x):
        return x + tables[x.shape[0]]

    with Graphed(fn, example=(torch.ones(4, WIDTH),), config=GraphConfig(sizes=(2, 4))) as graphed:
        graphed.warm_up()
        graphed.capture()
        tables[4] = torch.zeros(WIDTH)
        assert torch.equal(graphed(X), X + 1)
        with pytest.raises(TensorReboundError, match=r"tables\[4\]"):
            graphed(torch.ones(4, WIDTH))


def test_released_graphs_run_eagerly_until_recaptured():
    model = Model()
    with captured(model) as graphed:
        graphed.release()
        assert graphed.memory().total_bytes >= 0 and not graphed.plans
        model.layers[0].weight = nn.Parameter(torch.eye(WIDTH))
        assert torch.equal(graphed(X), model(X))
        assert graphed.counters.by_reason["NOT_CAPTURED_YET"] == 1
        graphed.recapture()
        assert torch.equal(graphed(X), model(X))
        assert graphed.counters.by_runtime_mode["FULL"] == 1
