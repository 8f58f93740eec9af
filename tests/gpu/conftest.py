"""What tests of captures on a GPU share."""

import pytest
import torch

from ostinato.runtime.capture import select_backend


@pytest.fixture
def backend():
    """A CUDA backend, with nothing pending on the device."""
    backend = select_backend("cuda")
    torch.cuda.synchronize()
    with torch.no_grad():
        yield backend
    backend.close()
