"""Slicing, copying and lending of a plan's outputs."""

import torch

from ostinato.runtime.runners import Delivery


def observed(copies):
    delivery = Delivery(copies=copies)
    for rows in (2, 4):
        delivery.observe({"y": torch.zeros(rows, 3), "state": torch.zeros(4, 3), "n": 7}, rows)
    return delivery


def test_only_what_followed_the_bucket_is_cut():
    out = observed(copies=False).deliver({"y": torch.ones(4, 3), "state": torch.ones(4, 3), "n": 7}, 1)
    assert out["y"].shape == (1, 3)
    assert out["state"].shape == (4, 3)
    assert out["n"] == 7


def test_lent_outputs_are_the_graphs_own_and_copies_are_not():
    y = torch.ones(4, 3)
    lent = observed(copies=False).deliver({"y": y, "state": y, "n": 7}, 2)["y"]
    copied = observed(copies=True).deliver({"y": y, "state": y, "n": 7}, 2)["y"]
    y.fill_(5.0)
    assert lent.eq(5.0).all()
    assert copied.eq(1.0).all()
