"""The facade on a CUDA device: the same rules as simulated, on real graphs."""

import pytest
import torch

from ostinato.errors import CaptureError, HostSyncError, StaleOutputError
from ostinato.runtime import GraphConfig, Graphed, ReplayView, graph_break

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZES = (1, 2, 4, 8)


@pytest.fixture
def net():
    torch.manual_seed(0)
    first, last = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 8).cuda()

    @graph_break
    def mix(h):
        return torch.cumsum(h, -1)

    return lambda x: last(mix(first(x)))


@pytest.mark.parametrize("mode", ["none", "full", "piecewise"])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 9])
def test_equal_to_eager_at_bucket_edges(net, mode, rows):
    with Graphed(net, example=(torch.randn(8, 64, device="cuda"),), config=GraphConfig(mode=mode, sizes=SIZES)) as g:
        g.warm_up()
        assert not g.capture().failed
        x = torch.randn(rows, 64, device="cuda")
        torch.testing.assert_close(g(x), net(x), rtol=1e-5, atol=1e-5)


def test_segments_and_breaks(net):
    config = GraphConfig(mode="piecewise", sizes=SIZES)
    with Graphed(net, example=(torch.randn(8, 64, device="cuda"),), config=config) as g:
        g.warm_up()
        g.capture()
        for plan in g.plans.values():
            assert plan.num_segments == 2
            assert len(plan.breaks) == 1


def test_replay_allocates_and_synchronises_nothing(net):
    config = GraphConfig(mode="full", sizes=SIZES, outputs="view")
    with Graphed(net, example=(torch.randn(8, 64, device="cuda"),), config=config) as g:
        g.warm_up()
        g.capture()
        x = torch.randn(3, 64, device="cuda")
        g(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(10):
                g(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_host_sync_is_typed_and_survivable(net):
    bad = Graphed(
        lambda x: x * x.sum().item(), example=(torch.randn(4, 64, device="cuda"),), config=GraphConfig(sizes=(2, 4))
    )
    with bad:
        bad.warm_up()
        with pytest.raises(HostSyncError):
            bad.capture()
    with Graphed(net, example=(torch.randn(4, 64, device="cuda"),), config=GraphConfig(sizes=(2, 4))) as good:
        good.warm_up()
        assert len(good.capture().captured) == 2


def test_one_failing_key_leaves_the_others(net):
    def fails_on_four(x):
        if x.shape[0] == 4:
            torch.cuda.synchronize()
        return net(x)

    with Graphed(fails_on_four, example=(torch.randn(8, 64, device="cuda"),), config=GraphConfig(sizes=SIZES)) as g:
        g.warm_up()
        report = g.capture()
        assert [key.num_tokens for key in report.captured] == [8, 2, 1]
        assert all(isinstance(error, CaptureError) for error in report.failed.values())
        x = torch.randn(3, 64, device="cuda")
        torch.testing.assert_close(g(x), net(x), rtol=1e-5, atol=1e-5)
        assert g.explain(x).padded_tokens == 8


def test_pool_is_given_back(net):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        with Graphed(net, example=(torch.randn(8, 64, device="cuda"),), config=GraphConfig(sizes=SIZES)) as g:
            g.warm_up()
            g.capture()
    del g
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (4 << 20)


def test_views_are_checked_across_the_callables_that_share_a_pool():
    """One pool a process: what an early callable uses in passing may become another's output."""

    def deep(x):
        h = x * 2
        for _ in range(6):
            h = torch.tanh(h + 1)
        return h

    x = torch.randn(64, 64, device="cuda")
    config = GraphConfig(mode="full", sizes=(64,), outputs="view")
    with Graphed(deep, example=(x,), config=config) as early, Graphed(deep, example=(x,), config=config) as late:
        for graphed in (early, late):
            graphed.warm_up().capture()
        want = deep(x)
        of_early = early(x)
        of_late = late(x)
        torch.testing.assert_close(of_early.clone(), want)  # captured first, so nothing of it was given to the other
        torch.testing.assert_close(of_late.clone(), want)
        early(x + 3)
        with pytest.raises(StaleOutputError, match="generation="):
            of_late.sum()
        for use in (lambda v: v.cpu(), lambda v: v.data_ptr(), lambda v: v.__cuda_array_interface__, torch.from_dlpack):
            fresh = late(x)
            use(fresh)
            late(x)
            with pytest.raises(StaleOutputError):
                use(fresh)


@pytest.mark.parametrize("partition", ["breakable", "fx", "inductor"])
def test_views_of_every_partition(net, partition):
    config = GraphConfig(mode="piecewise", partition=partition, sizes=SIZES, outputs="view")
    with Graphed(net, example=(torch.randn(8, 64, device="cuda"),), config=config) as g:
        g.warm_up()
        g.capture()
        x = torch.randn(3, 64, device="cuda")
        view = g(x)
        assert type(view) is ReplayView
        torch.testing.assert_close(view.clone(), net(x), rtol=1e-4, atol=1e-4)
        g(x)
        with pytest.raises(StaleOutputError):
            view.sum()
