"""Slicing, copying and lending of a plan's outputs."""

import torch

from ostinato.runtime import GraphKey, ReplayView, RuntimeMode
from ostinato.runtime.runners import CapturedPlan, Delivery

KEY = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4)
ARENA = torch.ones(12)


def observed(copies):
    delivery = Delivery(copies=copies, arena=ARENA)
    for rows in (2, 4):
        delivery.observe({"y": torch.zeros(rows, 3), "state": torch.zeros(4, 3), "n": 7}, rows)
    return delivery


def plan(y, state):
    return CapturedPlan(key=KEY, outputs={"y": y, "state": state, "n": 7})


def test_only_what_followed_the_bucket_is_cut():
    for give in (observed(copies=False).deliver, observed(copies=False).lend, observed(copies=True).deliver):
        out = give(plan(torch.ones(4, 3), torch.ones(4, 3)), 1)
        assert out["y"].shape == (1, 3)
        assert out["state"].shape == (4, 3)
        assert out["n"] == 7


def test_lent_outputs_are_the_graphs_own_and_copies_are_not():
    y = torch.ones(4, 3)
    lent = observed(copies=False).lend(plan(y, y), 2)["y"]
    checked = observed(copies=False).deliver(plan(y, y), 2)["y"]
    copies = [give(plan(y, y), 2)["y"] for give in (observed(copies=True).lend, observed(copies=True).deliver)]
    y.fill_(5.0)
    assert type(lent) is torch.Tensor and type(checked) is ReplayView
    assert lent.eq(5.0).all() and checked.eq(5.0).all()
    assert all(copied.eq(1.0).all() for copied in copies)


def test_inputs_are_copied_and_what_is_kept_is_left_alone():
    delivery, kept = observed(copies=False), torch.ones(8, 3)
    delivery.leave([kept])
    out = delivery.deliver(plan(ARENA.view(4, 3), kept[2:6]), 2)
    assert type(out["y"]) is torch.Tensor and out["y"].data_ptr() != ARENA.data_ptr()
    assert type(out["state"]) is torch.Tensor and out["state"].data_ptr() == kept[2:].data_ptr()


def test_an_output_without_a_row_a_token_is_told_once(caplog):
    delivery = observed(copies=True)
    delivery.check()
    delivery.check()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("output 1, of shape (4, 3), has no row a token") and "qualify()" in told
