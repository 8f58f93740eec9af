"""A plan to look at: as values, text, JSON and DOT."""

import json
import re

import pytest
import torch

from ostinato.errors import RuntimeStateError
from ostinato.runtime import GraphKey, RuntimeMode, graph_break
from ostinato.runtime.runners import ArgumentBytes
from ostinato.runtime.runners.inspection import InspectedBreak, InspectedSegment, PlanInspection

PLAN = PlanInspection(
    "PIECEWISE tokens=4",
    (
        InspectedSegment(("aten::mm", "aten::add", "aten::mm")),
        InspectedBreak('layers."0".attn', "model\\attention.py:12", (64, 1024), ArgumentBytes(segment=4096)),
        InspectedBreak("nothing", "model.py:1", ()),
        InspectedSegment(tuple(f"kernel_{n}" for n in range(9))),
    ),
    ArgumentBytes(segment=4096, bridge=64),
)


def test_as_json():
    document = json.loads(json.dumps(PLAN.to_dict()))
    entries = document.pop("entries")
    assert document.pop("break_argument_bytes") == {
        "segment": 4096,
        "bridge": 64,
        "outside": 0,
        "owned": 4160,
        "recycled": 64,
    }
    assert document == {"key": "PIECEWISE tokens=4", "segments": 2, "breaks": 2, "nodes": 12, "bridge_bytes": 1088}
    assert entries[0] == {"kind": "segment", "nodes": ["aten::mm", "aten::add", "aten::mm"]}
    assert entries[1] == {
        "kind": "break",
        "name": 'layers."0".attn',
        "source": "model\\attention.py:12",
        "bridge_bytes": [64, 1024],
        "argument_bytes": {"segment": 4096, "bridge": 0, "outside": 0, "owned": 4096, "recycled": 0},
    }


def test_as_text():
    assert PLAN.to_text().splitlines() == [
        "PIECEWISE tokens=4",
        "    0 segment      3 nodes  aten::mm x2, aten::add",
        '    1 break    layers."0".attn at model\\attention.py:12  given 4,096 bytes  bridges 1,088 bytes',
        "    2 break    nothing at model.py:1",
        "    3 segment      9 nodes  kernel_0, kernel_1, kernel_2, kernel_3, kernel_4, kernel_5, 3 more",
        "  break arguments held: 4,160 bytes with ownership owned, 64 with recycled",
    ]


def test_as_dot():
    lines = PLAN.to_dot().splitlines()
    assert lines[0] == "digraph plan {"
    assert lines[-1] == "}"
    assert [re.search(r"shape=(\w+)", line)[1] for line in lines if "shape=" in line] == [
        "box",
        "ellipse",
        "ellipse",
        "box",
    ]
    assert [line.strip() for line in lines if "->" in line] == ["n0 -> n1;", "n1 -> n2;", "n2 -> n3;"]
    assert [re.search(r'label="(break: .*)"]', line)[1] for line in lines if "ellipse" in line] == [
        r"break: layers.\"0\".attn\nmodel\\attention.py:12\ngiven 4,096 bytes\nbridges 1,088 bytes",
        r"break: nothing\nmodel.py:1",
    ]
    for line in lines:  # every quote that opens closes on its line, or Graphviz reads on
        assert len(re.findall(r'(?<!\\)"', line)) % 2 == 0, line


def test_a_plan_of_one_segment():
    plan = PlanInspection("FULL tokens=1", (InspectedSegment(()),))
    assert plan.to_dict()["nodes"] == 0
    assert "->" not in plan.to_dot()


@graph_break
def fresh(h):
    return h * 3


@graph_break(mutates=("out",), name="layers.0.attn")
def in_place(h, out):
    out.copy_(h)


def program(x):
    out = torch.empty_like(x)
    in_place(fresh(x + 1), out)
    return out.relu()


@pytest.mark.parametrize("partition", ["breakable", "fx"])
def test_of_a_captured_callable(ready, partition):
    graphed = ready(program, torch.ones(4, 2), mode="piecewise", partition=partition, sizes=(2, 4))
    for key in graphed.keys:
        plan = graphed.inspect(key)
        assert plan.key == str(key)
        first, broken, written, last = plan.entries
        assert (first.nodes, last.nodes) == (("aten::add",), ("aten::relu",))
        assert (broken.name, written.name) == ("fresh", "layers.0.attn")
        assert broken.source == f"{__file__}:{fresh.__wrapped__.__code__.co_firstlineno}"
        assert broken.bridge_bytes == (key.num_tokens * 2 * 4,), "what it returns goes to a bridge"
        assert written.bridge_bytes == (), "what it writes in place does not"
        row = key.num_tokens * 2 * 4
        bridge = max(graphed.keys[0].num_tokens, key.num_tokens) * 2 * 4  # smaller keys use the head of the largest's
        assert broken.arguments == ArgumentBytes(segment=row)
        assert written.arguments == ArgumentBytes(segment=row, bridge=bridge)
        assert plan.arguments == ArgumentBytes(segment=2 * row, bridge=bridge)


def test_a_key_without_a_graph_lists_those_that_have_one(ready):
    graphed = ready(program, torch.ones(4, 2), mode="piecewise", sizes=(4,))
    missing = GraphKey(runtime_mode=RuntimeMode.FULL, num_tokens=4)
    with pytest.raises(RuntimeStateError, match="there is no graph of FULL tokens=4") as caught:
        graphed.inspect(missing)
    assert caught.value.fix == "captured keys: PIECEWISE tokens=4"
    with pytest.raises(RuntimeStateError, match="'PIECEWISE tokens=4' is no GraphKey"):
        graphed.inspect("PIECEWISE tokens=4")
    graphed.close()
    with pytest.raises(RuntimeStateError):
        graphed.inspect(graphed.keys[0])
