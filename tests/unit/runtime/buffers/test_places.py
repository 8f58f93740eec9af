"""Where a callable keeps its tensors."""

from __future__ import annotations

import functools

import torch
from torch import nn

from ostinato.runtime.breaks import graph_break
from ostinato.runtime.buffers import places_in, places_of

TABLE = torch.arange(4.0)


def names(fn):
    return {place.name for place in places_of(fn)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)
        self.register_buffer("scale", torch.ones(2))
        self.plain = torch.zeros(3)

    def forward(self, x):
        return self.inner(x) * self.scale


def test_a_module_has_its_parameters_buffers_and_plain_tensors():
    block = Block()
    places = {place.name: place for place in places_of(block)}
    assert places.keys() == {"inner.weight", "scale", "plain"}
    assert {name for name, place in places.items() if place.is_registered} == {"inner.weight", "scale"}
    assert places["plain"].get() is block.plain
    block.plain = torch.ones(3)
    assert places["plain"].get() is block.plain is not places["plain"].tensor
    block.inner.weight = nn.Parameter(torch.ones(2, 2))
    assert places["inner.weight"].get() is block.inner.weight
    del block.scale
    assert places["scale"].get() is None


def test_methods_functions_partials_and_objects():
    block, bias = Block(), torch.ones(2)

    def closure(x):
        return block(x) + bias + TABLE

    assert names(block.forward) == {"inner.weight", "scale", "plain"}
    assert names(closure) == {"block.inner.weight", "block.scale", "block.plain", "bias", "TABLE"}
    assert names(functools.partial(closure, bias, out=TABLE)) >= {"args[0]", "out", "bias"}

    class Holder:
        def __init__(self):
            self.layers = [block, bias]
            self.named = {"a": bias}

        def __call__(self, x):
            return x

    assert names(Holder()) == {
        "layers[0].inner.weight",
        "layers[0].scale",
        "layers[0].plain",
        "layers[1]",
        "named['a']",
    }
    assert names(Holder().__call__) == names(Holder())


def test_an_emptied_closure_holds_nothing():
    held = [torch.ones(2)]

    def outer(bias):
        def closure(x):
            return x + bias

        def empty():
            nonlocal bias
            del bias

        return closure, empty

    closure, empty = outer(held[0])
    (place,) = places_of(closure)
    assert place.get() is held[0]
    empty()
    assert place.get() is None


def test_stated_places():
    block = Block()
    assert {place.name for place in places_in(block)} == {"inner.weight", "scale", "plain"}
    assert {place.name for place in places_in({"k": TABLE})} == {"state['k']"}
    assert places_in(None) == []


def test_a_modules_plain_containers_are_looked_into_and_found_anew():
    block = Block()
    block.adapters = {"en": (torch.ones(2), torch.ones(3)), "de": torch.ones(4)}
    block.others = [block]  # a module in a plain container may lead back
    places = {place.name: place for place in places_of(block)}
    assert places.keys() >= {"adapters['en'][0]", "adapters['en'][1]", "adapters['de']"}
    assert places["adapters['en'][1]"].get() is block.adapters["en"][1]
    assert not places["adapters['de']"].is_registered
    del block.adapters["en"]
    assert places["adapters['en'][1]"].get() is places["adapters['en'][1]"].peek() is None
    block.adapters = {"de": torch.zeros(4)}
    assert places["adapters['de']"].get() is block.adapters["de"] is not places["adapters['de']"].tensor


def test_what_a_break_reaches():
    table, other = torch.ones(2), torch.zeros(3)

    @graph_break
    def inner(h):
        return h + other.sum()

    @graph_break
    def look(h):
        return inner(h) * table

    found = {place.name: place.tensor for place in places_of(lambda x: look(x) + 1)}
    assert found["look.table"] is table
    assert not any(tensor is other for tensor in found.values()), "breaks may reach each other in circles"
