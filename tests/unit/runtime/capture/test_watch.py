"""The watches judge only while a segment is open, and name the user's line."""

import threading

import pytest
import torch

from ostinato.errors import DynamicShapeError, HostSyncError, UnbrokenOpError
from ostinato.runtime.capture.generators import GeneratorLog
from ostinato.runtime.capture.watch import FunctionWatch, OpWatch, refuse, user_frame
from ostinato.runtime.ops import UNBROKEN_RULE, BlockReason, OpRule, Verdict

X = torch.arange(4.0)


@pytest.fixture
def watched():
    """Both watches, installed; ``watched(forbidden)`` activates them."""
    ops, functions = OpWatch("cpu", GeneratorLog(torch.device("cpu"))), FunctionWatch("cpu")

    def activate(*forbidden):
        ops.forbidden = functions.forbidden = frozenset(forbidden)
        ops.is_active = functions.is_active = True

    with ops, functions:
        yield activate
        ops.is_active = functions.is_active = False


def test_nothing_is_judged_between_segments(watched):
    assert X.sum().item() == 6.0
    assert torch.nonzero(X).shape == (3, 1)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda: X.sum().item(), HostSyncError),
        (lambda: float(X[0]), HostSyncError),
        (lambda: X.tolist(), HostSyncError),
        (lambda: "yes" if X.any() else "no", HostSyncError),
        (lambda: f"{X}", HostSyncError),
        (lambda: X[X > 1], DynamicShapeError),
    ],
    ids=["item", "float", "tolist", "branch", "format", "mask"],
)
def test_refusals_name_the_line(watched, use, error):
    watched()
    with pytest.raises(error) as caught:
        use()
    assert caught.value.context["at"].startswith(f"{__file__}:")


def test_forbidden_ops_are_those_of_the_segment(watched):
    q = torch.randn(1, 1, 2, 4)
    watched()
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    watched("aten::scaled_dot_product_attention")
    with pytest.raises(UnbrokenOpError, match="scaled_dot_product_attention cannot be captured: mixes rows"):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)


def test_a_host_tensor_in_a_device_program_is_harmless():
    with FunctionWatch("cuda") as watch:
        watch.is_active = True
        assert X.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert torch.tensor([1.0], device="cpu").shape == (1,)


@pytest.mark.parametrize("reason", list(BlockReason))
def test_every_reason_has_an_error(reason):
    error = refuse("aten::thing", OpRule(Verdict.UNFRIENDLY, reason, "do this"))
    assert reason.value in error.message
    assert error.fix == "do this"
    assert error.context["op"] == "aten::thing"


def test_the_user_frame_is_the_caller_of_the_runtime():
    assert user_frame().startswith(__file__)
    assert refuse("x", UNBROKEN_RULE).context["at"].startswith(__file__)


def test_threads_leave_torchs_process_wide_flags_as_they_were():
    from torch.utils import _python_dispatch

    inside, leave = threading.Event(), threading.Event()

    def first():
        with OpWatch("cpu", GeneratorLog(torch.device("cpu"))):
            inside.set()
            leave.wait(5)

    def second():
        inside.wait(5)
        with OpWatch("cpu", GeneratorLog(torch.device("cpu"))):
            leave.set()  # never while the other is inside

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    inside.wait(5)
    assert not leave.wait(0.2)
    leave.set()
    for thread in threads:
        thread.join()
    assert not _python_dispatch._is_in_torch_dispatch_mode
