"""How a turn is timed, on a machine of a host and a device that are both simulated, and what is spent on it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.runtime import GraphConfig, StepRun
from ostinato.runtime.dispatch import Turns, confirmed_costs, steps_to_time, time_steps
from ostinato.runtime.keys import LiveBatch, Mode
from ostinato.runtime.planning import plan_keys


class Machine:
    """`TimedDevice` on a clock of its own: a host that launches, and a device that works in the order of launches."""

    def __init__(self):
        self.now = 0.0  # of the host
        self.free_at = 0.0  # the device, of all that it was given
        self.log = []

    def host(self, seconds):
        self.now += seconds

    def launch(self, seconds):
        self.free_at = max(self.free_at, self.now) + seconds

    def wait(self):
        self.log.append("wait")
        self.now = max(self.now, self.free_at)

    def marks(self, count):
        self.log.append(f"{count} marks")
        return [Mark(self) for _ in range(count)]

    def turns(self, *, overlap):
        return Turns(self, overlap=overlap, clock=lambda: self.now)

    def logged(self, run):
        def both():
            self.log.append("run")
            run()

        return both


class Mark:
    def __init__(self, machine):
        self._machine = machine

    def set(self):
        self._machine.log.append("mark")
        self.at = max(self._machine.now, self._machine.free_at)

    def seconds_since(self, earlier):
        assert self._machine.now >= self.at, "the device was waited for"
        return self.at - earlier.at


def step(machine, *, host, device, ready=lambda: None):
    """Half of the host's time before the launch, and half behind it."""

    def run():
        machine.host(host() / 2 if callable(host) else host / 2)
        machine.launch(device)
        machine.host(host() / 2 if callable(host) else host / 2)

    return StepRun(ready, machine.logged(run))


@pytest.mark.parametrize(("host", "device"), [(1e-3, 3e-3), (3e-3, 1e-3), (2e-3, 2e-3), (0.0, 1e-3), (1e-3, 0.0)])
def test_a_step_behind_another_takes_what_the_slower_side_needs_and_alone_both(host, device):
    machine = Machine()
    in_a_row, alone = (machine.turns(overlap=overlap) for overlap in (True, False))
    run = step(machine, host=host, device=device)
    assert in_a_row(run, 4).seconds == pytest.approx([max(host, device)] * 4)
    assert alone(run, 4).seconds == pytest.approx([host / 2 + max(host / 2, device)] * 4)


@given(st.lists(st.tuples(st.floats(0, 1e-3), st.floats(0, 1e-3)), min_size=1, max_size=12))
def test_from_the_first_run_on_however_both_share_the_work(parts):
    """Many launches a step, early or late ones the longer."""
    machine = Machine()

    def run():
        for host, device in parts:
            machine.host(host)
            machine.launch(device)

    slower = max(sum(host for host, _ in parts), sum(device for _, device in parts))
    assert machine.turns(overlap=True)(StepRun(lambda: None, run), 3).seconds == pytest.approx([slower] * 3, abs=1e-9)


def test_what_is_left_of_putting_inputs_in_place_hides_no_host():
    """A step that waits for the host would end when the device is done with what it was given before, not later."""
    machine = Machine()
    run = step(machine, host=3e-3, device=1e-3, ready=lambda: machine.launch(50e-3))
    assert machine.turns(overlap=True)(run, 2).seconds == pytest.approx([3e-3] * 2)


def test_a_host_whose_noise_is_less_than_the_slack_disturbs_no_step_that_waits_for_the_device():
    machine, noise = Machine(), random.Random(7)
    noisy = step(machine, host=lambda: 1e-3 * noise.uniform(1, 2.9), device=3e-3)
    found = [seconds for _ in range(20) for seconds in machine.turns(overlap=True)(noisy, 2).seconds]
    assert found == pytest.approx([3e-3] * 40, rel=1e-9)
    alone = [seconds for _ in range(20) for seconds in machine.turns(overlap=False)(noisy, 2).seconds]
    assert max(alone) > 1.1 * min(alone), "where it is waited for, the noise is in it"


def test_runs_in_a_row_wait_once_and_count_from_the_second_on():
    machine = Machine()
    run = step(machine, host=1e-3, device=1e-3, ready=lambda: machine.log.append("ready"))
    machine.turns(overlap=True)(run, 2)
    assert machine.log == ["wait", "ready", "wait", "3 marks", *("run", "mark") * 3, "wait"]


def test_runs_one_by_one_are_each_waited_for_and_all_count():
    machine = Machine()
    run = step(machine, host=1e-3, device=1e-3, ready=lambda: machine.log.append("ready"))
    machine.turns(overlap=False)(run, 2)
    assert machine.log == ["wait", "ready", "wait", *("run", "wait") * 2]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_turn_has_spent_all_that_went_by(overlap):
    machine = Machine()
    machine.launch(9e-3)  # somebody else's

    def ready():
        machine.host(2e-3)
        machine.launch(5e-3)

    turn = machine.turns(overlap=overlap)(step(machine, host=1e-3, device=3e-3, ready=ready), 2)
    assert turn.spent_seconds == pytest.approx(machine.now - 9e-3)
    assert turn.spent_seconds - sum(turn.seconds) >= 7e-3 - 1e-12


# --- budgets ----------------------------------------------------------------------------------------


class Steps:
    """`StepsToTime` of a machine, all alike and near each other; inputs take the host and the device a while."""

    def __init__(self, machine, *, ready):
        self.machine, self.ready = machine, ready

    def live(self, kind, key):
        return LiveBatch(num_tokens=key.num_tokens, num_reqs=1)

    def step(self, decision, like):
        def ready():
            self.machine.host(self.ready)
            self.machine.launch(self.ready)

        return step(self.machine, host=0.5e-3, device=1e-3 * (1 + decision.padded_tokens / 10_000), ready=ready)

    def first(self, *, overlap, budget_seconds):
        keys = plan_keys(GraphConfig(sizes=(64, 128, 256, 512)), Mode.PIECEWISE, max_size=512)
        todo = steps_to_time(keys, self, query_lens=(), tiers=None)
        turns = self.machine.turns(overlap=overlap)
        return time_steps(todo, self, take_turn=turns, budget_seconds=budget_seconds)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ready", [0.0, 1e-3, 4e-3])
@pytest.mark.parametrize("budget", [0.8, 1.2, 9.0])
def test_a_budget_counts_all_that_was_spent(overlap, ready, budget):
    machine = Machine()
    steps = Steps(machine, ready=ready)
    first = steps.first(overlap=overlap, budget_seconds=budget)
    repeats = {len(turn) for each in first.turns.values() for turn in each}
    assert machine.now <= budget
    if budget == 9.0:
        assert repeats == {4}, "no more than that"
    elif max(repeats) < 4:
        one_more = 8 * len(first.todo) * 1.2e-3 * (1 if overlap else 1.5)
        assert machine.now > budget - one_more, "and all of it is used"


@pytest.mark.parametrize("overlap", [True, False])
def test_walks_count_all_that_was_spent_too(overlap):
    machine = Machine()
    steps = Steps(machine, ready=3e-3)
    first = steps.first(overlap=overlap, budget_seconds=1e-9)
    spent = machine.now
    confirmed_costs(first, steps, take_turn=machine.turns(overlap=overlap), budget_seconds=0.5)
    assert 0.45 < machine.now - spent <= 0.5
