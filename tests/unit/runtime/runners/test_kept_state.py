"""State and random generators come back as they were, whole or by rows, whatever ran meanwhile."""

from __future__ import annotations

import pytest
import torch

from ostinato.runtime.capture import GeneratorLog, GeneratorStates
from ostinato.runtime.runners import Snapshot, generators_kept, seeded, state_kept

CPU = torch.device("cpu")


def test_a_snapshot_of_rows_leaves_the_others_alone():
    whole, some = torch.arange(4.0), torch.arange(8.0).view(4, 2)
    snapshot = Snapshot({"whole": whole, "some": (some, torch.tensor([1, 3]))})
    whole += 10
    some += 10
    snapshot.restore()
    assert whole.tolist() == [0, 1, 2, 3]
    assert some.tolist() == [[10, 11], [2, 3], [14, 15], [6, 7]]
    assert snapshot.saved["some"].tolist() == [[2, 3], [6, 7]]


def test_state_that_inference_mode_made_is_put_back_outside_of_it():
    with torch.inference_mode():
        made = torch.zeros(2)
    snapshot = Snapshot({"made": made})
    with torch.inference_mode():
        made.fill_(1)
    snapshot.restore()
    assert made.tolist() == [0, 0]


def test_state_is_put_back_after_an_error_too():
    tensor = torch.zeros(3)
    with pytest.raises(RuntimeError, match="planted"), state_kept({"tensor": tensor}):
        tensor.fill_(1)
        raise RuntimeError("planted")
    assert tensor.tolist() == [0, 0, 0]


def test_generators_begin_where_they_are_or_where_they_are_told_to():
    torch.manual_seed(5)
    noted = GeneratorStates(CPU)
    first = torch.rand(3)
    second = torch.rand(3)
    noted.restore()
    torch.rand(3)
    with generators_kept(CPU, GeneratorLog(CPU)):
        assert torch.equal(torch.rand(3), second)
    with generators_kept(CPU, GeneratorLog(CPU), begin_at=noted):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.rand(3), second), "neither run has moved them"


def test_seeded_runs_are_alike_and_leave_no_trace():
    before = torch.get_rng_state()
    drawn = []
    for _ in range(2):
        with seeded(CPU, GeneratorLog(CPU)):
            drawn.append(torch.rand(3))
        torch.rand(1)
    assert torch.equal(*drawn)
    torch.set_rng_state(before)
    expected = torch.rand(1)
    torch.set_rng_state(before)
    with seeded(CPU, GeneratorLog(CPU)):
        torch.rand(7)
    assert torch.equal(torch.rand(1), expected)


def test_generators_of_the_users_own_are_alike_and_put_back_too_even_if_they_are_first_met_meanwhile():
    log, known, met = GeneratorLog(CPU), torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    log.note(known)
    states = [known.get_state(), met.get_state()]
    drawn = []
    for _ in range(2):
        with seeded(CPU, log):
            drawn.append(torch.rand(3, generator=known))
            log.note(met)
            torch.rand(3, generator=met)
        torch.rand(1, generator=known)
        known.set_state(states[0])
    assert torch.equal(*drawn)
    assert torch.equal(known.get_state(), states[0]) and torch.equal(met.get_state(), states[1])
    with seeded(CPU, log):
        assert not torch.equal(torch.rand(3, generator=known), torch.rand(3, generator=met))
