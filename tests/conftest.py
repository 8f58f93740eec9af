"""Settings of the whole test run."""

import gc
import importlib
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def _frozen_imports():
    """Take everything imported out of the garbage collector: each capture phase collects once."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # the first dispatch mode would import it, after the freeze
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
