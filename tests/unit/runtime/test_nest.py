"""Nested values: walk, replace, compare."""

from collections import namedtuple

import torch

from ostinato.runtime.nest import leaves, map_leaves, map_tensors, skeleton, tensors

Pair = namedtuple("Pair", "left right")


def test_paths_read_like_python():
    value = (1, [2, {"a": 3}], Pair(4, None))
    assert dict(leaves(value)) == {"[0]": 1, "[1][0]": 2, "[1][1]['a']": 3, "[2][0]": 4, "[2][1]": None}
    assert list(leaves(5)) == [("", 5)]


def test_mapping_keeps_containers():
    value = {"a": (1, [2]), "b": Pair(3, 4)}
    assert map_leaves(value, lambda leaf: leaf + 1) == {"a": (2, [3]), "b": Pair(4, 5)}
    assert isinstance(map_leaves(value, str)["b"], Pair)


def test_only_tensors_are_replaced():
    value = [torch.ones(2), "x", {"y": torch.zeros(1)}]
    changed = map_tensors(value, lambda t: t + 1)
    assert changed[0].tolist() == [2.0, 2.0]
    assert changed[1] == "x"
    assert [t.numel() for t in tensors(changed)] == [2, 1]


def test_skeletons_ignore_tensor_contents_and_tell_structures_apart():
    one = (torch.ones(2), {"a": 1})
    assert skeleton(one) == skeleton((torch.zeros(5, 5), {"a": 2}))
    different = [
        [torch.ones(2), {"a": 1}],
        (torch.ones(2), {"b": 1}),
        (torch.ones(2), {"a": 1.0}),
        (None, {"a": 1}),
        (torch.ones(2), {"a": 1}, None),
    ]
    assert all(skeleton(other) != skeleton(one) for other in different)
