"""Which generators are the user's own, and where they stand."""

from __future__ import annotations

import pytest
import torch

from ostinato.runtime.capture import GeneratorLog, GeneratorStates, generators_in

CPU = torch.device("cpu")


def seen_by_an_op(generator: torch.Generator) -> torch.Generator:
    """Another Python object of the same generator, as an op is handed it."""
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((kwargs or {})["generator"])
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.rand(1, generator=generator)
    assert seen[0] is not generator
    return seen[0]


def test_each_generator_is_entered_once_and_default_ones_never():
    log, own = GeneratorLog(CPU), torch.Generator()
    assert log.is_missing(own)
    log.note(own)
    log.note(seen_by_an_op(own))
    log.note(torch.default_generator)
    log.note(seen_by_an_op(torch.default_generator))
    assert log.entries() == [own] == log.to_register()
    assert not log.is_missing(seen_by_an_op(own)) and not log.is_missing(torch.default_generator)


def test_only_those_of_the_device_are_registered_or_missed():
    log, on_host = GeneratorLog(torch.device("cuda", 0)), torch.Generator()
    assert not log.is_missing(on_host), "a draw on the host is no work of a graph"
    log.note(on_host)
    assert log.entries() == [on_host] and log.to_register() == []


def test_all_are_put_back_after_an_error_too():
    log, known, met = GeneratorLog(CPU), torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    log.note(known)
    before = [known.get_state(), met.get_state()]
    with pytest.raises(ValueError, match="planted"), log.kept():
        log.note(met)
        torch.rand(3, generator=known)
        torch.rand(3, generator=met)
        raise ValueError("planted")
    assert all(map(torch.equal, before, [known.get_state(), met.get_state()]))


def test_states_tell_whether_any_has_moved_and_restore_all():
    own = torch.Generator().manual_seed(1)
    states = GeneratorStates(CPU, [own])
    assert not states.have_moved()
    first, default = torch.rand(3, generator=own), torch.rand(3)
    assert states.have_moved()
    states.restore()
    assert not states.have_moved()
    assert torch.equal(torch.rand(3, generator=own), first) and torch.equal(torch.rand(3), default)


def test_generators_are_found_in_nested_values():
    first, second = torch.Generator(), torch.Generator()
    assert list(generators_in({"a": [first, 1], "b": (torch.ones(1), second)})) == [first, second]
    assert list(generators_in(None)) == []
