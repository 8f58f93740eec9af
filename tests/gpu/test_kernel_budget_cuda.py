"""Launches a layer of a decode step, counted in its graph: each costs some 1.3 us beyond its work.

What is left over beside the layers is for the embedding, the last norm, the head and the choice of tokens. The kernels
of linear layers are the default ones: what was tuned on a machine may take others.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ostinato import LLM
from ostinato.bench.engine_probe import facade_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = Path(__file__).parents[2] / "benchmarks" / "models" / "llama-3.2-1b"
BUDGETS = {1: 5, 8: 7, 256: 10}
"""Requests in decode -> launches a layer."""
BESIDE_LAYERS = 8


def test_decode_graphs_keep_to_their_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path))
    num_layers = json.loads((SHAPE / "config.json").read_text())["num_hidden_layers"]
    limits = {"max_model_len": 1024, "max_num_reqs": max(BUDGETS), "kv_tokens": 1 << 16}
    with LLM(str(SHAPE), load_format="dummy", mode="full_decode_only", decode_sizes=tuple(BUDGETS), **limits) as llm:
        plans = facade_of(llm).plans
        found = {key.num_tokens: plan.num_nodes for key, plan in plans.items() if key.uniform_query_len == 1}
    assert set(found) == set(BUDGETS)
    assert min(found.values()) > num_layers, "nodes were counted"
    most = {batch: a_layer * num_layers + BESIDE_LAYERS for batch, a_layer in BUDGETS.items()}
    over = {batch: (nodes, most[batch]) for batch, nodes in found.items() if nodes > most[batch]}
    assert not over, f"batch: (nodes, budget): {over}"
