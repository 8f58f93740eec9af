"""`diagnose` as a whole: typed errors, declared breaks that a plan misses, attention, notes, text and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ostinato.errors import TargetError, UnknownNameError, UnsupportedPartitionError
from ostinato.runtime import diagnose, graph_break, opaque_op
from ostinato.runtime.breaks import is_planning
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.doctor import render
from ostinato.runtime.keys import GraphKey, RuntimeMode
from ostinato.runtime.runners import BreakableRunner, Call, CapturedPlan, Runner

LINEAR = nn.Linear(8, 8)
X = torch.randn(4, 8)


def test_a_callable_that_fails_by_itself_is_a_typed_error_with_its_line() -> None:
    def broken(x: Tensor) -> Tensor:
        return x @ torch.ones(3, 3)

    with pytest.raises(TargetError, match="by itself") as caught:
        diagnose(broken, (X,))
    assert caught.value.code == "OST103"
    assert caught.value.context["at"] == f"{__file__}:{broken.__code__.co_firstlineno + 1}"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_declared_break_that_is_not_in_the_plan_is_reported() -> None:
    marked = graph_break(lambda h: h + 1)

    def flips(x: Tensor) -> Tensor:
        h = LINEAR(x)
        return LINEAR(h + 1 if is_planning() and torch.is_grad_enabled() is False and flips_now() else marked(h))

    runs = [0]

    def flips_now() -> bool:
        runs[0] += 1
        return runs[0] > 2  # the two warm-up runs meet the mark, the capture does not

    found = diagnose(flips, (X,), modes=("breakable",))
    assert any("no break is in the plan" in warning for warning in found.modes["breakable"].warnings)


def test_a_plan_that_records_nothing_is_reported() -> None:
    found = diagnose(lambda x: x, (X,), modes=("full",))
    assert any("nothing was recorded" in warning for warning in found.modes["full"].warnings)


def keeping_empty_segments(backend: CaptureBackend, **_: Any) -> dict[RuntimeMode, Runner]:
    """Runners that do not drop what recorded nothing, as ours do."""

    class Keeping(BreakableRunner):
        def capture(self, key: GraphKey, call: Call) -> CapturedPlan:
            plan = super().capture(key, call)
            with backend.session():
                backend.begin()
                plan.entries.append(backend.end())
            return plan

    return {RuntimeMode.PIECEWISE: Keeping(backend)}


def test_a_plan_with_an_empty_segment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnose(LINEAR, (X,), modes=("breakable",))
    assert not found.modes["breakable"].warnings
    monkeypatch.setattr("ostinato.runtime.doctor.trial.make_runners", keeping_empty_segments)
    outcome = diagnose(LINEAR, (X,), modes=("breakable",)).modes["breakable"]
    assert outcome.warnings == ("the plan has an empty segment",)
    assert (outcome.num_segments, outcome.num_nodes) == (2, found.modes["breakable"].num_nodes)


def test_attention_that_is_told_a_host_length_is_a_warning() -> None:
    @opaque_op(fake=lambda q, max_seqlen: torch.empty_like(q), name="doctor_test_attention")
    def attend(q: Tensor, max_seqlen: int) -> Tensor:
        return q[:, :max_seqlen].sum(1, keepdim=True) + q

    found = diagnose(lambda x: attend(LINEAR(x), 4), (X,), modes=("breakable",))
    said = [op for op in found.ops if "attention" in op.op]
    assert [(op.verdict.value, op.reason) for op in said] == [
        ("conditional", "host integer that depends on the batch"),
    ]
    assert any("takes a length on the host" in line for line in found.advice)
    assert any("attention calls are captured" in warning for warning in found.modes["breakable"].warnings)


def test_a_full_graph_is_warned_of_what_declared_breaks_do() -> None:
    @graph_break
    def plan(h: Tensor) -> Tensor:
        return h * h.sum().item()

    found = diagnose(lambda x: LINEAR(plan(LINEAR(x))), (X,), modes=("full", "breakable"))
    assert not found.is_blocked
    assert any("captures break" in warning and "host sync" in warning for warning in found.modes["full"].warnings)


def test_for_a_full_graph_alone_a_declared_break_is_a_plain_call() -> None:
    read = graph_break(lambda h: h * h.sum().item())
    found = diagnose(lambda x: LINEAR(read(LINEAR(x))), (X,), modes=("full",))
    assert found.is_blocked and not found.modes["full"].works
    assert not found.suggested_breaks  # it is marked already


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="breakable"):
        diagnose(LINEAR, (X,), modes=("breakabel",))


@pytest.mark.parametrize("how", [{"partition": "fxx"}, {"compiler": "gcc"}])
def test_an_unknown_partition_or_compiler_lists_the_known_ones(how: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown (partition 'fxx'|compile 'gcc')"):
        diagnose(LINEAR, (X,), **how)


def test_the_partition_is_tried_as_piecewise() -> None:
    def untraceable(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return LINEAR(x)

    fx = diagnose(untraceable, (X,))
    assert {mode: outcome.works for mode, outcome in fx.modes.items()} == {
        "full": True,
        "piecewise": False,
        "breakable": True,
    }
    breakable = diagnose(untraceable, (X,), partition="breakable")
    assert {mode: outcome.works for mode, outcome in breakable.modes.items()} == {"full": True, "breakable": True}


@pytest.mark.parametrize("how", [{"partition": "inductor"}, {"compiler": "inductor"}])
def test_what_simulated_graphs_cannot_hold_is_refused_and_not_swapped(how: dict[str, str]) -> None:
    with pytest.raises(UnsupportedPartitionError, match="simulated graphs cannot record"):
        diagnose(LINEAR, (X,), **how)


def test_a_batch_that_cannot_be_halved_is_noted() -> None:
    def insists(x: Tensor) -> Tensor:
        if x.shape[0] != 4:
            raise ValueError("four rows or none")
        return LINEAR(x)

    found = diagnose(insists, (X,), modes=())
    assert len(found.notes) == 1 and "four rows or none" in found.notes[0]


def test_modules_of_torch_alone_name_torchs_line() -> None:
    found = diagnose(nn.Sequential(LINEAR, nn.GELU()), (X,), modes=("full",))
    assert {op.file.rsplit("/", 1)[1] for op in found.ops} == {"linear.py", "activation.py"}
    assert found.modes["full"].works


def test_keyword_arguments_nested_tensors_and_other_values() -> None:
    def model(batch: dict[str, Tensor], *, scale: float, extra: tuple[Tensor, ...]) -> Tensor:
        return LINEAR(batch["x"]) * scale + extra[0]

    found = diagnose(model, ({"x": X},), {"scale": 2.0, "extra": (X, X)}, modes=("full", "piecewise"))
    assert found.verdict.value == "friendly"
    assert all(outcome.replay == "equal" for outcome in found.modes.values())


def test_as_plain_values_and_as_text() -> None:
    def read(h: Tensor) -> Tensor:
        return h * h.sum().item()

    found = diagnose(lambda x: LINEAR(read(LINEAR(x))), (X,), modes=("full", "breakable"))
    document = json.loads(json.dumps(found.to_dict()))
    assert {"verdict", "ops", "blockers", "suggested_breaks", "modes"} <= document.keys()
    assert {"op", "verdict", "reason", "file", "line", "count", "share"} <= document["ops"][0].keys()
    assert document["blockers"] == [op for op in document["ops"] if op["verdict"] == "unfriendly"]
    assert document["suggested_breaks"][0].keys() == {"function", "file", "line"}
    assert math.isclose(sum(op["share"] for op in document["ops"]), 1)
    text = render(found)
    assert "mark with @graph_break" in text and "host sync" in text and "breakable with the suggested" in text
