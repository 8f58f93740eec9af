"""Settings of the whole test run."""

import gc
import importlib
import os
import sys

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Small matrices gain nothing from threads, and lose much where a machine is busy."""
    torch = importlib.import_module("torch")
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(previous)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_by_default(request):
    """The default run computes with one thread, in the processes that it starts too: a thread that waits for work of
    microseconds spins, and the same tests took twice the processor's time on two cores. A run of slow tests, or on a
    GPU, has the machine's threads, and one with OMP_NUM_THREADS as many as that says."""
    marked = any(item.get_closest_marker(mark) for item in request.session.items for mark in ("slow", "gpu"))
    if marked or "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        importlib.import_module("torch").set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _frozen_imports():
    """Take everything imported so far out of the garbage collector: each capture phase collects once, and there are
    thousands. For each file anew, since tests import too."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # the first dispatch mode would import it, after the freeze
    gc.collect()
    gc.freeze()
