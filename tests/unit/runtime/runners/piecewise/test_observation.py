"""What is told from eager calls of a break, and what is refused because it cannot be told."""

import pytest
import torch

from ostinato.errors import UntraceableBreakError
from ostinato.runtime import graph_break
from ostinato.runtime.runners.piecewise.observation import (
    Fresh,
    FromArgument,
    observe_call,
    result_rules,
    schema_types,
)


def point_of(fn):
    return graph_break(fn).__ostinato_break__


def observe(fn, *calls):
    """The break point and an `Observation` of each call's arguments."""
    point = point_of(fn)
    return point, [observe_call(point, args, {}, fn(*args)) for args in calls]


def rows(n, width=3):
    return torch.ones(n, width)


def test_the_result_is_described_without_its_tensors():
    def fn(h, out):
        return {"new": h * 2, "same": out, "plain": (3, None, "x")}

    h, out = rows(4), rows(4)
    point, (seen,) = observe(fn, (h, out))
    assert seen.template == {"new": Fresh(0), "same": FromArgument("out"), "plain": (3, None, "x")}
    assert [(spec.shape, spec.dtype) for spec in seen.fresh] == [((4, 3), torch.float32)]
    assert point.name.endswith("fn")


def test_the_argument_itself_by_another_tensor_object():
    assert observe(lambda h: h.view_as(h), (rows(4),))[1][0].template == FromArgument("h")


@pytest.mark.parametrize(
    "view",
    [
        lambda h: h[:, :2],
        lambda h: h[1:],
        lambda h: h.t(),
        lambda h: h.view(torch.int32),
        lambda h: h.view(-1),
        lambda h: (h, h[0]),
    ],
    ids=["columns", "rows", "transposed square", "dtype", "flat", "nested"],
)
def test_a_view_of_an_argument_is_neither_new_nor_the_argument(view):
    """A square's transpose has the argument's address, shape and dtype, and other numbers."""
    with pytest.raises(UntraceableBreakError, match="it returns a view of its argument 'h'"):
        observe(view, (rows(3, 3),))


def test_an_empty_result_is_no_view():
    assert observe(lambda h: torch.empty(0), (torch.empty(0, 3),))[1][0].template == Fresh(0)


# --- sizes ----------------------------------------------------------------------------------------


def rules(fn, *calls):
    return result_rules(*observe(fn, *calls))


def test_sizes_follow_the_argument_that_they_followed():
    def fn(weight, h):
        return h @ weight.t(), weight.sum(0)

    weight = torch.ones(4, 3)  # as many rows as the first call's batch
    first, second = rules(fn, (weight, rows(4)), (weight, rows(5)))
    assert first.sizes == (("h", 0), 4)
    assert second.sizes == (3,)


def test_sizes_that_differ_between_call_sites_follow_too():
    (rule,) = rules(lambda h: h * 2, (rows(4, 3),), (rows(4, 7),), (rows(5, 3),), (rows(5, 7),))
    assert rule.sizes == (("h", 0), ("h", 1))


def test_sizes_that_never_changed_are_constants():
    (rule,) = rules(lambda h: torch.ones(4, 8), (rows(4),), (rows(5),))
    assert rule.sizes == (4, 8)
    (rule,) = rules(lambda h: h * 2, (rows(4),), (rows(4),))
    assert rule.sizes == (4, 3)


def test_another_dimension_of_another_argument():
    (rule,) = rules(lambda a, b: a.t() @ b, (rows(4, 2), rows(4, 6)), (rows(4, 3), rows(4, 5)))
    assert rule.sizes == (("a", 1), ("b", 1))


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda h: torch.cat([h, h]), r"a size of its result \(\[8, 10\] over warm-up\) follows no argument's size"),
        (lambda h: h[:-1] * 1, r"\[3, 4\] over warm-up"),
        (lambda h: h * 2 if h.shape[0] == 4 else h.sum(0), "the rank of its result differs"),
        (lambda h: h * 2 if h.shape[0] == 4 else h, "what it returns differs in more than tensors"),
        (lambda h: (h * 2, h.shape[0]), "what it returns differs in more than tensors"),
        (lambda h: (h * 2,) if h.shape[0] == 4 else [h * 2], "what it returns differs in more than tensors"),
        (lambda h: h.double() if h.shape[0] == 4 else h * 2, "the dtype of its result differs"),
        (lambda h: h * 2 if h.shape[0] == 4 else h.to("meta"), "the device of its result differs"),
    ],
)
def test_results_that_follow_nothing(fn, why):
    with pytest.raises(UntraceableBreakError, match=why) as caught:
        rules(fn, (rows(4),), (rows(5),))
    assert "partition='breakable'" in caught.value.fix
    assert caught.value.context["source"].startswith(__file__)


def test_a_dtype_that_follows_an_argument():
    (rule,) = rules(lambda h: h * 2, (rows(4),), (rows(4).double(),))
    assert rule.dtype == "h"


# --- types ----------------------------------------------------------------------------------------


def types(fn, *calls):
    return schema_types(*observe(fn, *calls))


def test_types_of_a_schema():
    def fn(h, n, scale, flag, name, w=None):
        return None

    assert types(fn, (rows(4), 3, 0.5, True, "x")) == {
        "h": "Tensor",
        "n": "SymInt",
        "scale": "float",
        "flag": "bool",
        "name": "str",
        "w": "Tensor?",
    }


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (None, rows(4), "Tensor?"),
        (rows(4), None, "Tensor?"),
        (None, 0.5, "float?"),
        (2, 0.5, "float"),
        (0.5, 2, "float"),
        (None, None, "Tensor?"),
    ],
    ids=str,
)
def test_types_are_wide_enough_for_all_calls(first, second, kind):
    assert types(lambda h, w: None, (rows(4), first), (rows(4), second))["w"] == kind


def test_types_that_no_schema_joins():
    with pytest.raises(UntraceableBreakError, match="argument 'w' is now a SymInt and now a str"):
        types(lambda h, w: None, (rows(4), 1), (rows(4), "1"))


@pytest.mark.parametrize(
    ("value", "name"),
    [([rows(4)], "list"), ({"a": rows(4)}, "dict"), (torch.float32, "dtype"), (object(), "object"), (1j, "complex")],
    ids=lambda value: type(value).__name__,
)
def test_arguments_that_no_op_takes(value, name):
    with pytest.raises(UntraceableBreakError, match=f"argument 'w' is a {name}, which no op can take"):
        observe(lambda h, w: None, (rows(4), value))
