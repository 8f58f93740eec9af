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


@pytest.fixture(scope="session", autouse=True)
def _frozen_imports():
    """Take everything imported out of the garbage collector: each capture phase collects once."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # the first dispatch mode would import it, after the freeze
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
