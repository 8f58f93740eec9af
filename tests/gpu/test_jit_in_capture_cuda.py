"""Real Triton kernels in a capture: a first compilation, tuning, and work on side streams past the dispatcher."""

import subprocess
import sys

import pytest
import torch

from ostinato.errors import JitInCaptureError, UnjoinedStreamError

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@triton.jit
def add_kernel(x, y, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(y + at, tl.load(x + at) + 1)


@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 2)], key=["rows"])
@triton.jit
def tuned_kernel(x, y, rows, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(y + at, tl.load(x + at) + rows)


def segment(backend, fn):
    with backend.phase(), backend.session():
        backend.begin()
        fn()
        return backend.end()


def is_as_new(backend, launch, y, expected):
    """The kernel that was refused runs, is captured then, and replays."""
    launch()
    torch.cuda.synchronize()
    graph = segment(backend, launch)
    y.zero_()
    graph.replay()
    assert y.tolist() == [expected] * y.numel()
    graph.close()


def test_a_first_compilation_is_refused_by_its_name(backend):
    x, y = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")

    def launch():
        add_kernel[(1,)](x, y, 32)

    with pytest.raises(JitInCaptureError, match="add_kernel") as caught:
        segment(backend, launch)
    assert "test_jit_in_capture_cuda.py" in caught.value.context["at"]
    is_as_new(backend, launch, y, 2.0)


def test_another_specialisation_is_a_first_compilation_too(backend):
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    add_kernel[(1,)](x, y, 16)
    with pytest.raises(JitInCaptureError, match="add_kernel"):
        segment(backend, lambda: add_kernel[(1,)](x, y, 64))
    is_as_new(backend, lambda: add_kernel[(1,)](x, y, 64), y, 2.0)


def test_tuning_is_refused_even_with_all_kernels_compiled(backend):
    x, y = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")

    def launch(rows):
        tuned_kernel[(1,)](x, y, rows, 32)

    with pytest.raises(JitInCaptureError, match="tuned_kernel"):
        segment(backend, lambda: launch(3))
    is_as_new(backend, lambda: launch(3), y, 4.0)
    with pytest.raises(JitInCaptureError, match="'tuned_kernel' would tune itself"):
        segment(backend, lambda: launch(5))  # an integer of the same specialisation, and another key of the tuner
    is_as_new(backend, lambda: launch(5), y, 6.0)


def test_the_hook_is_gone_after_it(backend):
    before = triton.knobs.runtime.jit_cache_hook if hasattr(triton, "knobs") else triton.JITFunction.cache_hook
    segment(backend, lambda: None).close()
    after = triton.knobs.runtime.jit_cache_hook if hasattr(triton, "knobs") else triton.JITFunction.cache_hook
    assert after is before


def test_a_kernel_on_a_fork_that_is_not_joined_is_found_by_the_device_and_named(backend):
    x, y, side = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda"), torch.cuda.Stream()

    def program(joins):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            add_kernel[(1,)](x, y, 32)
        if joins:
            main.wait_event(side.record_event())

    add_kernel[(1,)](x, y, 32)
    torch.cuda.synchronize()
    with pytest.raises(UnjoinedStreamError, match="not joined") as caught:
        segment(backend, lambda: program(joins=False))
    assert caught.value.context["streams"] == [f"stream {side.cuda_stream:#x}"]
    assert "test_jit_in_capture_cuda.py" in caught.value.context["at"]
    graph = segment(backend, lambda: program(joins=True))
    y.zero_()
    graph.replay()
    assert y.tolist() == [2.0] * 32
    graph.close()


KERNELS = """
import triton
import triton.language as tl


@triton.jit
def late_kernel(x, y, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(y + at, tl.load(x + at) + 1)
"""
LATE = """
import sys
import torch
from ostinato.errors import JitInCaptureError
from ostinato.runtime.capture import select_backend

backend = select_backend("cuda")
x, y = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")
is_late = "triton" not in sys.modules


def launch():
    from late_kernels import late_kernel

    late_kernel[(1,)](x, y, 32)


def segment():
    with torch.no_grad(), backend.phase(), backend.session():
        backend.begin()
        launch()
        return backend.end()


try:
    segment()
except JitInCaptureError as error:
    print("late" if is_late else "early", error.context["kernel"], error.context["at"])
launch()
torch.cuda.synchronize()
graph = segment()
y.zero_()
graph.replay()
print(y.tolist() == [2.0] * 32, getattr(sys.modules["triton"], "knobs").runtime.jit_cache_hook)
graph.close()
"""


def test_a_triton_that_is_imported_in_the_segment_is_watched(tmp_path):
    """In a process of its own, in which nothing has imported Triton yet."""
    (tmp_path / "late_kernels.py").write_text(KERNELS)
    (tmp_path / "program.py").write_text(LATE)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    refusal, replay = done.stdout.splitlines()
    when, kernel, at = refusal.split()
    assert kernel.endswith("late_kernel") and "program.py:" in at
    assert replay == "True None"
    if when == "early":
        pytest.skip("something here imports Triton with torch; the refusal itself holds")
