"""Qualification on a GPU: sound graphs pass within tolerance, planted faults and frozen kernel arguments are found."""

from __future__ import annotations

import itertools
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ostinato import LLM
from ostinato.engine.execution import ShadowTurns
from ostinato.engine.request import SamplingParams
from ostinato.runtime import FindingKind, GraphConfig, Graphed, Reason, graph_break
from ostinato.runtime.runners import BreakStep
from ostinato.telemetry import KeyQuarantined, MemorySink
from ostinato.testing.engine_faults import ENGINE_FAULTS
from ostinato.testing.tiny_models import write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="no triton"))]
SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "max_model_len": 256,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 2048,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}


@graph_break
def squared(h: torch.Tensor) -> torch.Tensor:
    return h * h


def opened(fn: Any, *, sinks: Any = (), **config: Any) -> Graphed:
    rows = torch.randn(8, 16, device="cuda")
    graphed = Graphed(fn, example=(rows,), config=GraphConfig(sizes=(8,), **config), sinks=sinks)
    graphed.warm_up()
    graphed.capture()
    return graphed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", BACKENDS)
def test_an_engine_passes(tmp_path: Path, attention: str, dtype: str) -> None:
    folder = write_tiny_model(tmp_path, "qwen3")
    with LLM(str(folder), mode="full_and_piecewise", attention=attention, dtype=dtype, **SETTINGS) as llm:
        before = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))[0].token_ids
        report = llm.qualify()
        assert report.passed, report.to_text()
        assert not report.is_bitwise and report.backend == "cuda"
        assert not any("not looked for" in warning for key in report.keys for warning in key.warnings), report.to_text()
        assert llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8))[0].token_ids == before


# On a device nobody knows which of two rows is the last to write one slot, so row 11 takes a page of nobody.
@pytest.mark.parametrize(
    ("fault", "mode", "kind"),
    [
        (ENGINE_FAULTS[3], "piecewise", FindingKind.DIFFERS),
        (ENGINE_FAULTS[8], "full_decode_only", FindingKind.DIFFERS),
        (partial(ENGINE_FAULTS[11], lambda _host: 16 * 100 + 1), "full_decode_only", FindingKind.STATE_WRITES),
        (ENGINE_FAULTS[13], "full_decode_only", FindingKind.PADDING_LEAKS),
    ],
    ids=["row 3", "row 8", "row 11", "row 13"],
)
def test_a_fault_in_the_engine_is_found(tmp_path: Path, fault: Any, mode: str, kind: FindingKind) -> None:
    """Row 8 by the wrong output that it causes: in which kernel's parameters it shows is up to the torch version."""
    folder = write_tiny_model(tmp_path, "llama")
    settings = {**SETTINGS, "attention": "torch", "dtype": "float32", "mode": mode}
    with LLM(str(folder), **settings) as llm:
        assert llm.qualify().passed, "sound without the fault"
    with fault(), LLM(str(folder), **settings) as llm:
        report = llm.qualify()
        assert not report.passed
        assert kind in {finding.kind for finding in report.failed[0].findings}, report.to_text()


def test_callables_pass() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    for fn, config in [
        (model, {}),
        (lambda x: squared(model[0](x)).tanh(), {"mode": "piecewise"}),
        (lambda x: (nn.functional.dropout(x), x), {}),
    ]:
        with opened(fn, **config) as graphed:
            report = graphed.qualify()
            assert report.passed, report.to_text()


@pytest.mark.parametrize("fn", [lambda x: x.softmax(0), lambda x: x - x.mean(0), lambda x: x.flip(0)])
def test_rows_that_depend_on_each_other_are_caught(fn: Any) -> None:
    with opened(fn) as graphed:
        (key,) = graphed.qualify().keys
        assert [finding.kind for finding in key.findings] == [FindingKind.PADDING_LEAKS]
        assert graphed.explain(torch.randn(8, 16, device="cuda")).reason is Reason.QUARANTINED


def test_a_frozen_kernel_argument_is_named() -> None:
    """Each call scales by another number of the host: two captures of one batch show that it does not follow the batch,
    and it is told apart from noise only if it stays the same there."""
    holder = SimpleNamespace(value=2.0)

    class Cases:
        def __init__(self, graphed: Graphed) -> None:
            self._graphed = graphed

        def state(self) -> dict[str, torch.Tensor]:
            return {}

        def of(self, key: Any) -> Any:
            from ostinato.runtime import Case, LiveBatch

            for value in (2.0, 3.0):

                def fill(value: float = value) -> None:
                    holder.value = value
                    self._graphed.buffers.views(self._graphed.key_sizes(key))["x"].fill_(1.0)

                yield Case(name=str(value), live=LiveBatch(num_tokens=8), fill=fill, cut=lambda y: y)

    with opened(lambda x: torch.relu(x) * holder.value) as graphed:
        (key,) = graphed.qualify(cases=Cases(graphed)).keys
    found = {finding.kind: finding for finding in key.findings}
    assert found[FindingKind.DIFFERS].where == "segment 0"
    assert "parameter" in found[FindingKind.BAKED_VALUE].where, found[FindingKind.BAKED_VALUE]
    assert found[FindingKind.BAKED_VALUE].where.startswith("segment 0, op ")


@graph_break
def shifted(h: torch.Tensor, by: float) -> torch.Tensor:
    return h + by


@pytest.mark.parametrize(
    ("partition", "compiler"), [("breakable", "none"), ("fx", "none"), ("fx", "inductor"), ("inductor", "none")]
)
def test_a_frozen_argument_of_a_break_is_named(partition: str, compiler: str) -> None:
    """Read from Python state: traced programs have it as a constant, which no capture of theirs changes."""
    holder = SimpleNamespace(by=1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return shifted(shifted(x * 2, holder.by).tanh(), 0.5) * 3

    with opened(fn, mode="piecewise", partition=partition, compile=compiler) as graphed:
        assert graphed.mode.partition == partition
        report = graphed.qualify()
        assert report.passed, report.to_text()
        holder.by = 5
        (key,) = graphed.qualify().keys
    assert key.findings[0].kind is FindingKind.BAKED_VALUE, key.findings
    assert "argument 'by' of break 'shifted' has changed since capture" in key.findings[0].what
    assert "at_capture=1" in key.findings[0].what and "now=5" in key.findings[0].what  # an op's float may be 1.0
    assert key.findings[0].where.startswith(__file__)


def test_a_break_output_at_a_stale_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(lambda x: squared(x + 1).tanh(), mode="piecewise") as graphed:
        monkeypatch.setattr(BreakStep, "_hand_over", lambda self, *args, **kwargs: None)
        (key,) = graphed.qualify().keys
        assert key.findings[0].kind is FindingKind.DIFFERS
        assert key.findings[0].where.startswith("the hand-over of break 0")


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("attention", BACKENDS)
def test_shadows_while_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str, overlap: bool) -> None:
    """Compared steps after they ran, while others go on: each sees what its step saw."""
    turns = itertools.count()
    monkeypatch.setattr(
        ShadowTurns, "is_due", lambda self, *, is_idle, **_: self.is_waiting and (is_idle or next(turns) % 5 < 2)
    )
    folder = write_tiny_model(tmp_path, "llama")
    prompts, params = [[5, 6, 7], [9] * 20, [3]], SamplingParams(max_tokens=12, ignore_eos=True)
    answers = []
    for every in (0, 2):
        sink = MemorySink()
        settings = {**SETTINGS, "dtype": "float32", "attention": attention, "overlap": overlap}
        with LLM(str(folder), shadow_every=every, sinks=[sink], **settings) as llm:
            answers.append([output.token_ids for output in llm.generate(prompts, params)])
            assert not [event for event in sink.events if isinstance(event, KeyQuarantined)]
            assert not every or llm.stats()["shadow"]["compared"] >= 3
    assert answers[0] == answers[1]


def test_a_shadow_finds_a_frozen_number() -> None:
    sink = MemorySink()
    holder = SimpleNamespace(value=2.0)
    rows = torch.randn(8, 16, device="cuda")
    with opened(lambda x: x * holder.value, shadow_every=2, sinks=[sink]) as graphed:
        for _ in range(3):
            graphed(rows)
        holder.value = 3.0
        graphed(rows)
        graphed.finish_shadow()
        (event,) = [e for e in sink.events if isinstance(e, KeyQuarantined)]
        assert event.found_by == "shadow"
