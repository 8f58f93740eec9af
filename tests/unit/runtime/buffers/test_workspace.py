"""A workspace grows until a graph has its address."""

import pytest
import torch

from ostinato.errors import ConfigError, WorkspaceGrowthError
from ostinato.runtime import GraphConfig, Graphed, Workspace
from ostinato.runtime.breaks import recording


def test_it_grows_before_any_capture_and_keeps_its_place_for_less():
    workspace = Workspace("splits", device="cpu")
    first = workspace.reserve(64)
    assert (first.shape, first.dtype, workspace.num_bytes) == ((64,), torch.uint8, 64)
    assert workspace.reserve(8).data_ptr() == first.data_ptr()
    workspace.reserve(4096)
    assert workspace.num_bytes == 4096
    assert not workspace.is_captured


def test_it_may_not_grow_in_a_capture_nor_after_one():
    workspace = Workspace("splits", device="cpu", num_bytes=64)
    with recording():
        with pytest.raises(WorkspaceGrowthError, match="'splits' would grow in a capture"):
            workspace.reserve(65)
        assert not workspace.is_captured, "no graph has it yet"
        workspace.reserve(64)
    assert workspace.is_captured
    workspace.reserve(32)
    with pytest.raises(WorkspaceGrowthError, match=r"after a capture .* Fix: .*unlock") as raised:
        workspace.reserve(65)
    assert raised.value.context == {"expected": "at most 64 bytes", "got": 65}
    workspace.unlock()
    assert workspace.reserve(65).numel() == 65


def test_released_graphs_let_it_grow():
    workspace = Workspace("sums", device="cpu", num_bytes=4)

    def fn(x):
        parts = workspace.reserve(4 * x.shape[0]).view(torch.float32)
        return torch.mul(x, 2, out=parts) + 1

    with Graphed(fn, example=(torch.ones(4),), config=GraphConfig(sizes=(4,))) as graphed:
        graphed.warm_up()
        graphed.capture()
        assert graphed(torch.ones(4)).tolist() == [3.0] * 4
        with pytest.raises(WorkspaceGrowthError):
            graphed(torch.ones(5))
        graphed.release()
        workspace.unlock()
        assert graphed(torch.ones(5)).tolist() == [3.0] * 5
        graphed.recapture()
        assert graphed(torch.ones(4)).tolist() == [3.0] * 4


def test_a_negative_size():
    with pytest.raises(ConfigError):
        Workspace("w", device="cpu").reserve(-1)
