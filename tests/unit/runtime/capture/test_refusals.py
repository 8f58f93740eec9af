"""What the driver refuses in a capture becomes the error that fits, by name or description, in anybody's spelling."""

import pytest

from ostinato.errors import (
    CaptureError,
    HostSyncError,
    JitInCaptureError,
    StepFailedError,
    UnjoinedStreamError,
    UnknownGeneratorError,
)
from ostinato.runtime.capture.refusals import is_unjoined, typed_refusal


def raised(error, by="call", module=__name__):
    """``error``, as the function ``by`` of ``module`` raised it."""
    space = {"__name__": module, "error": error}
    exec(f"def {by}():\n    raise error", space)
    try:
        space[by]()
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("name", "text", "expected", "words"),
    [
        ("StreamCaptureUnsupported", "operation not permitted when stream is capturing", CaptureError, "cudaMalloc"),
        (
            "StreamCaptureInvalidated",
            "operation failed due to a previous error during capture",
            CaptureError,
            "had invalidated",
        ),
        (
            "StreamCaptureMerge",
            "operation would result in a merge of separate capture sequences",
            UnjoinedStreamError,
            "another capture",
        ),
        (
            "StreamCaptureUnmatched",
            "capture was not ended in the same stream as it began",
            UnjoinedStreamError,
            "ends on another",
        ),
        ("StreamCaptureUnjoined", "capturing stream has unjoined work", UnjoinedStreamError, "not joined"),
        (
            "StreamCaptureIsolation",
            "dependency created on uncaptured work in another stream",
            UnjoinedStreamError,
            "across the border",
        ),
        (
            "StreamCaptureImplicit",
            "operation would make the legacy stream depend on a capturing blocking stream",
            UnjoinedStreamError,
            "legacy default stream",
        ),
        (
            "CapturedEvent",
            "operation not permitted on an event last recorded in a capturing stream",
            HostSyncError,
            "event of a capture",
        ),
        (
            "StreamCaptureWrongThread",
            "attempt to terminate a thread-local capture sequence from another thread",
            CaptureError,
            "another thread",
        ),
    ],
)
def test_each_refusal_has_its_error(name, text, expected, words):
    snake = "".join(f"_{c}" if c.isupper() else c.upper() for c in name)
    spellings = [
        RuntimeError(f"CUDA error: {text}\nCompile with `TORCH_USE_CUDA_DSA`"),
        RuntimeError(f"Search for `cudaError{name}' in the manual"),
        RuntimeError(f"HIP error: hipError{name}"),
        Exception(f"[9xx] Call to cuMemAlloc results in CUDA_ERROR{snake}"),
    ]
    for error in map(raised, spellings):
        typed = typed_refusal(error)
        assert type(typed) is expected
        assert words in typed.message
        assert str(error).splitlines()[0] in typed.message
        assert typed.fix and typed.context["at"] != "unknown"
        assert is_unjoined(error) == (name == "StreamCaptureUnjoined")


UNSUPPORTED = "CUDA error: operation not permitted when stream is capturing"


@pytest.mark.parametrize(
    ("by", "module", "expected"),
    [
        ("synchronize", "torch.cuda", HostSyncError),
        ("deviceSynchronize", "cupy_backends.cuda.api.runtime", HostSyncError),
        ("query", "torch.cuda.streams", HostSyncError),
        ("__init__", "torch._tensor_str", HostSyncError),
        ("load_binary", "triton.compiler.compiler", JitInCaptureError),
        ("alloc", "cupy.cuda.memory", CaptureError),
    ],
)
def test_what_was_not_permitted_is_told_by_who_called(by, module, expected):
    assert type(typed_refusal(raised(RuntimeError(UNSUPPORTED), by, module))) is expected


def test_the_line_is_the_users():
    typed = typed_refusal(raised(RuntimeError(UNSUPPORTED), "synchronize", "torch.cuda"))
    assert "test_refusals.py" in typed.context["at"]


def test_an_error_without_a_traceback_is_at_the_line_that_runs():
    assert "test_refusals.py" in typed_refusal(RuntimeError(UNSUPPORTED)).context["at"]


def test_refusals_of_torch_itself():
    copy = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned."
    assert type(typed_refusal(RuntimeError(copy))) is HostSyncError
    generator = "Cannot call CUDAGeneratorImpl::set_current_seed during CUDA graph capture."
    assert type(typed_refusal(RuntimeError(generator))) is CaptureError


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("a name such as capturing in somebody's text"),
        KeyError("captured_event"),  # the end of a driver's error, and a name of the user's own
        HostSyncError("an error of ours, while capturing"),
        StepFailedError("operation not permitted when stream is capturing"),
    ],
)
def test_other_errors_stay_what_they_are(error):
    assert typed_refusal(error) is error


@pytest.mark.parametrize(
    "text",
    [
        "Attempt to increase offset for a CUDA generator not in capture mode.",
        "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need this call to be captured, ...",
    ],
)
def test_a_draw_that_no_watch_sees_is_told_by_torchs_words(text):
    typed = typed_refusal(RuntimeError(text))
    assert isinstance(typed, UnknownGeneratorError) and "Graphed(state=...)" in str(typed)
