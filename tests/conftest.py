"""Settings of the whole test run."""

import gc
import importlib
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


@pytest.fixture(scope="module", autouse=True)
def _frozen_imports():
    """Take everything imported so far out of the garbage collector: each capture phase collects once, and there are
    thousands. For each file anew, since tests import too."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # the first dispatch mode would import it, after the freeze
    gc.collect()
    gc.freeze()
