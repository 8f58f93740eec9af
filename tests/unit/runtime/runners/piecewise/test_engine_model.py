"""A decoder, traced: one segment more than it has layers, whatever its family, as the break marks promise."""

import pytest

from ostinato import LLM
from ostinato.testing.tiny_models import TINY_FAMILIES, tiny_config, write_tiny_model

SETTINGS = {"device": "cpu", "max_model_len": 64, "max_num_reqs": 4, "kv_tokens": 256}
SIZES = {"max_num_batched_tokens": 8, "token_sizes": (1, 4, 8), "decode_sizes": (4,)}


def plans_by_partition(model, **settings):
    """``{partition: {key: plan}}`` of ``model`` in pieces."""
    found = {}
    for partition in ("breakable", "fx"):
        with LLM(**model, mode="piecewise", partition=partition, **settings) as llm:
            found[partition] = {plan.key: plan.to_dict() for plan in llm.inspect()}
    return found


def check_plans(found, *, num_layers, num_keys):
    for plans in found.values():
        assert len(plans) == num_keys
        for key, plan in plans.items():
            assert (plan["segments"], plan["breaks"]) == (num_layers + 1, num_layers), key
            assert [entry["kind"] for entry in plan["entries"]] == ["segment", "break"] * num_layers + ["segment"]
            assert {entry["name"] for entry in plan["entries"] if entry["kind"] == "break"} == {"paged_attention"}


@pytest.mark.parametrize(
    "family", [f if f in ("llama", "qwen3") else pytest.param(f, marks=pytest.mark.slow) for f in TINY_FAMILIES]
)
def test_one_segment_more_than_layers(tmp_path, family):
    model = write_tiny_model(tmp_path, family, has_weights=False, has_tokenizer=False)
    found = plans_by_partition({"model": str(model)}, load_format="dummy", **SETTINGS, **SIZES)
    check_plans(found, num_layers=tiny_config(family)["num_hidden_layers"], num_keys=3)


@pytest.mark.slow
def test_one_segment_more_than_layers_on_smollm2():
    """The default model itself: 30 breaks, 31 segments, whoever finds the breaks."""
    found = plans_by_partition({}, **SETTINGS, **{**SIZES, "token_sizes": (1, 8)})
    check_plans(found, num_layers=30, num_keys=2)
    assert found["breakable"].keys() == found["fx"].keys()
