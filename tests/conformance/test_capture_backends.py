"""Both capture backends pass the suite that is shipped to users."""

import pytest
import torch

from ostinato.runtime.capture import select_backend
from ostinato.testing.conformance import (
    CaptureBackendConformance,
    SharedExecutablesConformance,
    SideStreamConformance,
)


class TestSimulated(CaptureBackendConformance, SideStreamConformance):
    @pytest.fixture
    def backend(self):
        backend = select_backend("cpu")
        yield backend
        backend.close()

    def test_memory_of_a_dead_input_reads_as_poison(self, backend):
        x = torch.ones(4)
        graph, y = self.record(backend, lambda t: t + 1, x)
        graph.replay()
        assert y.tolist() == [2.0] * 4
        del x
        graph.replay()
        assert y.isnan().all()

    def test_uninitialised_memory_reads_as_poison(self, backend):
        _, y = self.record(backend, lambda: torch.empty(4))
        assert y.isnan().all()

    def test_intermediates_freed_in_a_capture_are_reused_within_it(self, backend):
        def chain(t):
            for _ in range(50):
                t = t + 1
            return t

        graph, y = self.record(backend, chain, torch.zeros(1 << 12))
        assert graph.num_nodes == 50
        assert backend.memory().reserved_bytes <= 3 * y.numel() * 4

    def test_replay_is_bitwise_eager(self, backend):
        torch.manual_seed(0)
        layers = torch.nn.Linear(37, 51), torch.nn.LayerNorm(51), torch.nn.SiLU(), torch.nn.Linear(51, 3)
        net = torch.nn.Sequential(*layers)
        x = torch.randn(5, 37)
        graph, y = self.record(backend, net, x)
        x.copy_(torch.randn(5, 37))
        graph.replay()
        assert torch.equal(y, net(x))


class TestSimulatedThatShares(SharedExecutablesConformance):
    @pytest.fixture
    def backend(self):
        backend = select_backend("cpu", shares_executables=True)
        yield backend
        backend.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCudaThatShares(SharedExecutablesConformance):
    @pytest.fixture
    def backend(self):
        backend = select_backend("cuda", shares_executables=True)
        yield backend
        backend.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda(CaptureBackendConformance, SideStreamConformance):
    @pytest.fixture
    def backend(self):
        backend = select_backend("cuda")
        yield backend
        backend.close()

    def test_a_synchronize_in_a_capture_is_typed_and_survivable(self, backend):
        from ostinato.errors import HostSyncError

        x = torch.ones(4, device="cuda")
        for _ in range(3):
            with pytest.raises(HostSyncError):
                self.record_raw(backend, lambda: (torch.rand_like(x), torch.cuda.synchronize()))
        y = torch.rand(1 << 20, device="cuda")
        assert y.sum().item() > 0
        graph, z = self.record(backend, lambda t: t + 1, x)
        x.fill_(4.0)
        graph.replay()
        assert z.tolist() == [5.0] * 4
