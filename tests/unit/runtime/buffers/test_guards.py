"""Guards name the argument, what was expected and what came."""

import pytest
import torch

from ostinato.errors import InputSpecError
from ostinato.runtime.buffers import Slot, check_baked, check_input

CPU = torch.device("cpu")
SLOT = Slot(shape=(None, 4), dtype=torch.float32)


def test_live_rows():
    assert check_input("x", SLOT, torch.ones(3, 4), CPU) == 3
    assert check_input("x", Slot(shape=(None,), dtype=torch.int32, extra=1), torch.ones(3, dtype=torch.int32), CPU) == 2
    assert check_input("x", Slot(shape=(2, 4), dtype=torch.float32), torch.ones(2, 4), CPU) is None


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.ones(3, 5), "[3, 5] float32 on cpu"),
        (torch.ones(3, 1), "[3, 1] float32 on cpu"),  # would broadcast
        (torch.ones(4), "[4] float32 on cpu"),
        (torch.ones(1, 3, 4), "[1, 3, 4] float32 on cpu"),
        (torch.ones(3, 4, dtype=torch.float64), "[3, 4] float64 on cpu"),  # would be converted
        (torch.ones(3, 4, device="meta"), "[3, 4] float32 on meta"),
    ],
)
def test_other_tensors_are_refused(value, got):
    with pytest.raises(InputSpecError, match="argument 'x' differs") as caught:
        check_input("x", SLOT, value, CPU)
    assert caught.value.context == {"expected": "[num_tokens, 4] float32 on cpu", "got": got}


def test_a_list_is_no_tensor():
    with pytest.raises(InputSpecError, match="argument 'x' must be a tensor") as caught:
        check_input("x", SLOT, [1.0], CPU)
    assert caught.value.context["got"] == "list"


@pytest.mark.parametrize("value", [3, None, "a", float("nan"), (1, 2)])
def test_equal_frozen_values_pass(value):
    check_baked("x", value, value)


@pytest.mark.parametrize(("captured", "value"), [(3, 4), (1, True), (0, None), ("a", "b"), (1, 1.0)])
def test_changed_frozen_values_are_refused(captured, value):
    with pytest.raises(InputSpecError, match="argument 'scale' is frozen") as caught:
        check_baked("scale", captured, value)
    assert caught.value.context == {"expected": repr(captured), "got": repr(value)}
