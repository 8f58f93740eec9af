"""Views of outputs: every way to use one raises once it is stale, and gives what a plain tensor gives before."""

import copy
import io
import pickle

import numpy
import pytest
import torch

from ostinato.errors import StaleOutputError
from ostinato.runtime import GraphKey, ReplayView, RuntimeMode
from ostinato.runtime.capture import Generation
from ostinato.runtime.runners import Origin

KEY = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=2)


def lent(generation=None):
    generation = generation or Generation()
    plain = torch.arange(6.0).view(2, 3)
    return ReplayView.of(plain, Origin(KEY, generation, generation.now)), plain, generation


def saved(value):
    torch.save(value, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


USES = {
    "add": lambda v: v + 1,
    "reflected": lambda v: 1 - v,
    "compare": lambda v: v == 2,
    "function": lambda v: torch.sin(v),
    "nested in a list": lambda v: torch.cat([v, v]),
    "keyword": lambda v: torch.add(input=torch.ones(2, 3), other=v),
    "overload": lambda v: torch.ops.aten.add.Tensor(v, 1),
    "out": lambda v: torch.add(torch.ones(2, 3), 1, out=v),
    "copy from": lambda v: torch.zeros(2, 3).copy_(v),
    "assign from": lambda v: torch.zeros(4, 3).__setitem__(slice(0, 2), v),
    "assign into": lambda v: v.__setitem__(0, 7.0),
    "in place": lambda v: v.mul_(2),
    "index": lambda v: v[1, 2],
    "as index": lambda v: torch.arange(9.0)[v.long()],
    "module": lambda v: torch.nn.Linear(3, 3, bias=False).requires_grad_(False)(v).shape,
    "item": lambda v: v[0, 1].item(),
    "tolist": lambda v: v.tolist(),
    "float": lambda v: float(v[0, 1]),
    "len": len,
    "iterate": lambda v: [row.tolist() for row in v],
    "contains": lambda v: 3 in v,
    "print": str,
    "format": lambda v: f"{v}",
    "repr": repr,
    "numpy": lambda v: v.numpy().copy(),
    "asarray": lambda v: numpy.asarray(v).copy(),
    "dlpack": lambda v: torch.from_dlpack(v).clone(),
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "save": saved,
    "deepcopy": copy.deepcopy,
    "to": lambda v: v.to(torch.float64),
    "clone": lambda v: v.clone(),
    "shape": lambda v: v.shape,
    "address": lambda v: v.data_ptr(),
    "storage": lambda v: v.untyped_storage().data_ptr(),
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return numpy.array_equal(one, other) if isinstance(one, numpy.ndarray) else one == other


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use(use):
    view, plain, generation = lent()
    want = use(plain.clone()) if use not in (USES["address"], USES["storage"]) else use(plain)
    assert same(use(view), want)
    view, _, generation = lent()
    generation.advance()
    with pytest.raises(StaleOutputError):
        use(view)


def test_the_message_says_what_and_when_and_what_to_do():
    view, _, generation = lent()
    generation.advance()
    generation.advance()
    with pytest.raises(StaleOutputError) as caught:
        view + 1
    error = caught.value
    assert "used after a later one" in error.message
    assert error.context == {"key": str(KEY), "generation": 0, "now": 2}
    assert "clone() it before the next call" in error.fix and 'outputs="copy"' in error.fix


@pytest.mark.parametrize(
    "op", [lambda v: v + 1, lambda v: v.clone(), lambda v: v.to(torch.float64), saved, copy.deepcopy]
)
def test_results_with_memory_of_their_own_are_plain(op):
    view, _, generation = lent()
    result = op(view)
    assert type(result) is torch.Tensor
    generation.advance()
    assert result.sum() >= 15


@pytest.mark.parametrize(
    "op",
    [
        lambda v: v[0],
        lambda v: v.T,
        lambda v: v.view(-1),
        lambda v: v.detach(),
        lambda v: v.data,
        lambda v: v.mul_(2),
        lambda v: torch.add(torch.ones(2, 3), 1, out=v),
        lambda v: v.split(1)[1],
        lambda v: next(iter(v)),
        lambda v: v[0][1:],
    ],
)
def test_results_in_the_same_memory_are_views_too(op):
    view, plain, generation = lent()
    result = op(view)
    assert type(result) is ReplayView and not result.is_stale
    assert result.unchecked().untyped_storage().data_ptr() == plain.untyped_storage().data_ptr()
    generation.advance()
    with pytest.raises(StaleOutputError):
        result.sum()


def test_the_plain_tensor_at_ones_own_risk():
    view, plain, generation = lent()
    assert not view.is_stale
    generation.advance()
    assert view.is_stale
    assert view.unchecked() is plain and type(plain) is torch.Tensor


def test_two_origins_in_one_op():
    (old, _, generation), (new, _, _) = lent(), lent()
    assert (old + new).sum() == 30
    generation.advance()
    with pytest.raises(StaleOutputError):
        new + old
    assert new.sum() == 15


# --- generations -----------------------------------------------------------------------------------


def test_a_generation_counts_its_own_plans_and_those_that_captured_before():
    first, second = Generation(), Generation()
    first.follow([])
    second.follow([first, second])
    now = first.now, second.now
    first.advance()
    assert (first.now, second.now) == (now[0] + 1, now[1] + 1), "the second may lie in memory of the first"
    now = first.now, second.now
    second.advance()
    assert (first.now, second.now) == (now[0], now[1] + 1), "what the first has, the second was not given"
    first.follow([first, second])  # it captures anew
    now = first.now
    first.follow([second])
    second.advance()
    assert first.now == now + 1, "each is counted once"
