"""What tests of the runtime share: a simulated backend and ready-made `Graphed` callables."""

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed
from ostinato.runtime.capture import select_backend


@pytest.fixture
def backend():
    backend = select_backend("cpu")
    with torch.no_grad():
        yield backend
    backend.close()


@pytest.fixture
def ready():
    """``ready(fn, *example, kwargs=None, hooks=None, **config)``: a `Graphed`, warmed up and captured."""
    made = []

    def make(fn, *example, kwargs=None, hooks=None, **config):
        graphed = Graphed(fn, example=example, example_kwargs=kwargs, config=GraphConfig(**config), **(hooks or {}))
        made.append(graphed)
        graphed.warm_up()
        graphed.capture()
        return graphed

    yield make
    for graphed in made:
        graphed.close()
