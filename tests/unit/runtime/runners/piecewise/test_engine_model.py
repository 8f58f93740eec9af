"""A decoder, traced: one segment more than it has layers, whatever its family, as the break marks promise."""

import pytest

from ostinato import LLM
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config, write_tiny_model

SETTINGS = {"device": "cpu", "load_format": "dummy", "max_model_len": 64, "max_num_reqs": 4, "kv_tokens": 256}
SIZES = {"max_num_batched_tokens": 8, "token_sizes": (1, 4, 8), "decode_sizes": (4,)}


@pytest.mark.parametrize(
    "family", [f if f in ("llama", "qwen3") else pytest.param(f, marks=pytest.mark.slow) for f in TINY_FAMILIES]
)
def test_one_segment_more_than_layers(tmp_path, family):
    model = write_tiny_model(tmp_path, family, has_weights=False, has_tokenizer=False)
    num_layers = tiny_config(family)["num_hidden_layers"]
    found = {}
    for partition in ("breakable", "fx"):
        with LLM(str(model), mode="piecewise", partition=partition, **SETTINGS, **SIZES) as llm:
            found[partition] = {plan.key: plan.to_dict() for plan in llm.inspect()}
    assert len(found["fx"]) == 3
    for key, plan in found["fx"].items():
        assert (plan["segments"], plan["breaks"]) == (num_layers + 1, num_layers)
        assert [entry["kind"] for entry in plan["entries"]] == ["segment", "break"] * num_layers + ["segment"]
        assert {entry["name"] for entry in plan["entries"] if entry["kind"] == "break"} == {"paged_attention"}
        assert plan["breaks"] == found["breakable"][key]["breaks"]
