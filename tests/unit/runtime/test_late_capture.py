"""Serving at once, and capturing between steps."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import RuntimeStateError, TensorReboundError, WorkspaceGrowthError
from ostinato.runtime import GraphConfig, Graphed, LiveBatch, Reason, RuntimeMode, Workspace, graph_break

X = torch.arange(24.0 * 4).view(24, 4)


def make(fn, *, example=(X,), **config):
    return Graphed(fn, example=example, config=GraphConfig(**({"mode": "full", "sizes": (8, 16, 24)} | config)))


def test_steps_run_eagerly_until_their_graph_is_there():
    with make(lambda x: x * 2 + 1).defer_capture() as graphed:
        assert [key.num_tokens for key in graphed.pending] == [24, 16, 8]
        assert torch.equal(graphed(X[:5]), X[:5] * 2 + 1)
        assert graphed.explain(X[:5]).reason is Reason.NOT_CAPTURED_YET
        report = graphed.capture_late(graphed.pending[1:2])
        assert [key.num_tokens for key in report.captured] == [16]
        assert graphed.explain(X[:5]).bucket == "16", "a larger bucket serves until its own is there"
        assert graphed.explain(X[:20]).runtime_mode is RuntimeMode.EAGER
        graphed.capture_late()
        assert graphed.pending == []
        assert [key.num_tokens for key in graphed.plans] == [24, 16, 8]
        for rows in (1, 5, 8, 9, 16, 24):
            assert torch.equal(graphed(X[:rows]), X[:rows] * 2 + 1)
        assert graphed.explain(X[:5]).bucket == "8"


def test_only_captures_that_steps_wait_for_are_brief(monkeypatch):
    with make(lambda x: x * 2 + 1) as graphed:
        phase, seen = graphed.backend.phase, []

        def watched(*, is_brief=False):
            seen.append(is_brief)
            return phase(is_brief=is_brief)

        monkeypatch.setattr(graphed.backend, "phase", watched)
        graphed.warm_up().capture()
        assert seen == [False]
        graphed.resize(sizes=(8, 12, 24))
        assert seen == [False, True]
    with make(lambda x: x * 2 + 1).defer_capture() as graphed:
        phase, seen = graphed.backend.phase, []
        monkeypatch.setattr(graphed.backend, "phase", watched)
        graphed.capture_late()
        assert seen == [True]


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_state_is_as_if_the_made_up_steps_had_not_been(partition):
    state, draws = torch.zeros(4), []

    @graph_break
    def count(h):
        state.add_(h.sum(0))
        return h + 0

    with make(lambda x: count(x + 1) * 2, mode="piecewise", partition=partition).defer_capture() as graphed:
        graphed(X[:3])
        before = state.clone()
        torch.manual_seed(1)
        draws.append(torch.rand(1))
        torch.manual_seed(1)
        graphed.capture_late()
        draws.append(torch.rand(1))
        assert torch.equal(state, before)
        assert torch.equal(*draws)
        assert torch.equal(graphed(X[:8]), (X[:8] + 1) * 2)
        assert torch.equal(state, before + (X[:8] + 1).sum(0))
        assert graphed.explain(X[:8]).runtime_mode is RuntimeMode.PIECEWISE


def test_a_key_that_fails_is_dropped_alone_and_not_tried_again():
    def fn(x):
        return x * x.sum().item() if x.shape[0] == 16 else x * 2

    with make(fn).defer_capture() as graphed:
        report = graphed.capture_late()
        assert [key.num_tokens for key in report.failed] == [16]
        assert graphed.pending == []
        rejections = graphed.decide(LiveBatch(num_tokens=16)).alternatives
        assert Reason.CAPTURE_FAILED in {rejection.reason for rejection in rejections}
        assert graphed.explain(X[:9]).bucket == "24"


@pytest.mark.parametrize("order", ["largest first", "smallest first"])
def test_a_workspace_that_would_grow_between_two_late_captures_is_caught(order):
    """PITFALLS 7: it would move, and the graph that has its address would write where others live by then."""
    workspace = Workspace("splits", device="cpu")

    def fn(x):
        parts = workspace.reserve(4 * x.numel()).view(torch.float32).view(x.shape)
        return torch.mul(x, 2, out=parts) + 1

    with make(fn, sizes=(8, 24)).defer_capture() as graphed:
        large, small = graphed.pending
        first, then = (large, small) if order == "largest first" else (small, large)
        assert list(graphed.capture_late([first]).captured) == [first]
        memory = workspace.reserve(1).data_ptr()
        report = graphed.capture_late([then])
        assert workspace.reserve(1).data_ptr() == memory, "the graph that is there writes to it"
        if order == "largest first":
            assert list(report.captured) == [then] and not report.failed
        else:
            error = report.failed[then]
            assert isinstance(error, WorkspaceGrowthError) and "'splits' would grow" in str(error)
            assert list(graphed.plans) == [small], "dropped alone"
        for rows in (3, 8):
            assert torch.equal(graphed(X[:rows]), X[:rows] * 2 + 1)
            assert graphed.explain(X[:rows]).runtime_mode is RuntimeMode.FULL


def test_an_eager_step_between_late_captures_may_not_move_a_workspace_either():
    workspace = Workspace("splits", device="cpu")

    def fn(x):
        parts = workspace.reserve(4 * x.numel()).view(torch.float32).view(x.shape)
        return torch.mul(x, 2, out=parts) + 1

    with make(fn, sizes=(8, 24)).defer_capture() as graphed:
        graphed.capture_late(graphed.pending[1:])
        with pytest.raises(WorkspaceGrowthError, match="after a capture"):
            graphed(X[:9])
        assert torch.equal(graphed(X[:8]), X[:8] * 2 + 1), "and the graph goes on"


def test_an_output_that_only_looks_like_a_batch_is_not_cut():
    table = torch.ones(8, 2)
    with make(lambda x: (x * 2, table), sizes=(8,)).defer_capture() as graphed:
        graphed.capture_late()
        _, whole = graphed(X[:3])
        assert whole.shape == (8, 2)


def test_what_moved_in_between_is_noticed():
    net = torch.nn.Linear(4, 4)
    with make(net).defer_capture() as graphed:
        graphed.capture_late(graphed.pending[:1])
        net.weight = torch.nn.Parameter(torch.ones(4, 4))
        with pytest.raises(TensorReboundError):
            graphed.capture_late()


def test_misuse():
    with make(lambda x: x * 2) as graphed:
        with pytest.raises(RuntimeStateError, match="planned"):
            graphed.capture_late()
        graphed.warm_up().capture()
        assert graphed.capture_late().captured == [], "nothing is pending"
        with pytest.raises(RuntimeStateError, match="is not pending"):
            graphed.capture_late(graphed.keys[:1])
        with pytest.raises(RuntimeStateError, match="defer_capture"):
            graphed.defer_capture()


def test_from_inside_a_step():
    def fn(x):
        if calls:
            calls.pop()()
        return x * 2

    calls = []
    with make(fn, sizes=(8, 16)).defer_capture() as graphed:
        calls.append(graphed.capture_late)
        report = graphed.capture_late()
        assert [key.num_tokens for key in report.failed] == [16], "whose made-up run tried it"
        assert [key.num_tokens for key in report.captured] == [8]
