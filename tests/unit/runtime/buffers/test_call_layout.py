"""How calls map to slots: names, nesting, frozen values, and refusals."""

import pytest
import torch

from ostinato.errors import ConfigError, InputSpecError
from ostinato.runtime.buffers import CallLayout, Slot

CPU = torch.device("cpu")


def f(x, extra, scale=1.0, *, mask=None): ...


def layout(*args, fn=f, **kwargs):
    return CallLayout.from_example(fn, args, kwargs)


def test_names_come_from_the_signature():
    found = layout(torch.ones(4, 2), {"bias": [torch.ones(4), torch.ones(3)]}, 2.0, mask=torch.ones(4))
    assert list(found.slots) == ["x", "extra['bias'][0]", "extra['bias'][1]", "mask"]
    shapes = [slot.shape for slot in found.slots.values()]
    assert shapes == [(None, 2), (None,), (3,), (None,)]


def test_a_module_is_named_by_its_forward():
    assert list(layout(torch.ones(4, 2), fn=torch.nn.Linear(2, 2)).slots) == ["input"]


def test_positional_arguments_past_the_signature_are_numbered():
    def g(x, *rest, scale): ...

    found = layout(torch.ones(4), torch.ones(4), fn=g, scale=torch.ones(4))
    assert list(found.slots) == ["x", "args[1]", "scale"]


def test_a_builtin_has_numbers_only():
    assert list(layout(torch.ones(4), fn=torch.relu).slots) == ["args[0]"]


def test_split_and_join_are_inverse():
    found = layout(torch.ones(4, 2), {"bias": [torch.ones(4)]}, 2.0, mask=torch.ones(4))
    x, bias, mask = torch.ones(2, 2), torch.ones(2), torch.zeros(2)
    parts = found.split((x, {"bias": [bias]}, 2.0), {"mask": mask}, CPU)
    assert [t is u for t, u in zip(parts.values(), (x, bias, mask), strict=True)] == [True] * 3
    args, kwargs = found.join(parts)
    assert args[0] is x and args[1]["bias"][0] is bias and args[2] == 2.0 and kwargs["mask"] is mask
    assert found.num_rows(parts, "num_tokens") == 2
    assert found.num_rows(parts, "num_reqs") is None


def test_keyword_arguments_have_no_order():
    found = layout(x=torch.ones(4), extra=None, mask=torch.ones(4))
    parts = found.split((), {"mask": torch.zeros(2), "extra": None, "x": torch.ones(2)}, CPU)
    assert parts["mask"].tolist() == [0.0, 0.0]
    assert list(parts) == ["x", "mask"]


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((torch.ones(2),), {}, "another structure"),
        ((torch.ones(2), None, 3), {}, "another structure"),
        ((torch.ones(2), [None]), {}, "another structure"),
        ((torch.ones(2), 1), {}, "is frozen in the graph"),
        ((None, None), {}, "argument 'x' must be a tensor"),
        ((torch.ones(0), None), {}, "argument 'x' has 0 rows"),
    ],
)
def test_other_calls_are_refused(args, kwargs, text):
    with pytest.raises(InputSpecError, match=text):
        layout(torch.ones(4), None).split(args, kwargs, CPU)


def test_another_structure_is_told_in_the_words_of_a_call():
    with pytest.raises(InputSpecError) as caught:
        layout(torch.ones(4), {"k": [torch.ones(4)]}, mask=None).split((torch.ones(2),), {"flag": 1}, CPU)
    assert caught.value.context["expected"] == "args[0], args[1]['k'][0], mask"
    assert caught.value.context["got"] == "args[0], flag"
    with pytest.raises(InputSpecError) as caught:
        layout(torch.ones(4)).split((), {}, CPU)
    assert caught.value.context["got"] == "no arguments"


def test_one_axis_has_one_size():
    with pytest.raises(InputSpecError, match="'extra' has 3 rows on axis num_tokens") as caught:
        layout(torch.ones(4), torch.ones(4)).split((torch.ones(2), torch.ones(3)), {}, CPU)
    assert caught.value.context["expected"] == "2 as in 'x'"


@pytest.mark.parametrize(("extra", "least"), [(0, "1 or more"), (1, "2 or more")])
def test_how_many_rows_there_may_be(extra, least):
    declared = CallLayout.from_slots({"x": Slot(shape=(None,), dtype=torch.float32, extra=extra)})
    with pytest.raises(InputSpecError, match=f"argument 'x' has {extra} rows on axis num_tokens") as caught:
        declared.split((torch.ones(extra),), {}, CPU)
    assert caught.value.context == {"expected": least} and "no upper limit" in caught.value.fix


def test_no_tensor_where_one_was_declared_has_a_fix():
    with pytest.raises(InputSpecError, match="argument 'x' must be a tensor") as caught:
        layout(torch.ones(4)).split((None,), {}, CPU)
    assert caught.value.fix.startswith("pass a tensor") and caught.value.context["got"] == "NoneType"


def test_an_example_needs_a_batch_axis():
    with pytest.raises(ConfigError, match="no tensor with a batch axis"):
        layout(torch.tensor(1.0), None)


def test_the_example_is_not_kept():
    import weakref

    x = torch.ones(4)
    found, alive = layout(x, None), weakref.ref(x)
    del x
    assert alive() is None
    assert found.slots


def test_slots_are_positional_arguments():
    slots = {"ids": Slot(shape=(None,), dtype=torch.int64), "table": Slot(shape=(2, 2), dtype=torch.float32)}
    found = CallLayout.from_slots(slots)
    parts = found.split((torch.zeros(3, dtype=torch.int64), torch.ones(2, 2)), {}, CPU)
    assert list(parts) == ["ids", "table"]
    with pytest.raises(ConfigError, match="no slots"):
        CallLayout.from_slots({})
