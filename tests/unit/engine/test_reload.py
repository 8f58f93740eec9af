"""`LLM.reload_weights`: new weights behind old addresses, and a checkpoint that does not fit changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato import LLM
from ostinato.engine.request import SamplingParams
from ostinato.engine.weights import parallel_copy
from ostinato.errors import (
    AddressChangedError,
    CheckpointError,
    ClosedError,
    ConfigError,
    ModelNotFoundError,
    QualificationError,
    RuntimeStateError,
)
from ostinato.testing.engine_faults import stale_break_output
from ostinato.testing.tiny_models import write_tiny_model

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": 64,
    "max_num_reqs": 4,
    "max_num_batched_tokens": 16,
    "kv_tokens": 256,
    "decode_sizes": (1, 4),
    "token_sizes": (16,),
}
PROMPTS: list[Any] = [[5], [7, 8, 9, 250], [3] * 20]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two checkpoints of one shape."""
    return tuple(str(write_tiny_model(tmp_path_factory.mktemp(f"seed{n}"), seed=n)) for n in (0, 1))  # type: ignore[return-value]


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def weights(llm: LLM) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in llm._require_open().model.named_parameters()}


def is_as(llm: LLM, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in weights(llm).items())


@pytest.mark.parametrize("mode", ["none", "piecewise", "full_and_piecewise"])
def test_it_answers_as_a_fresh_engine_of_the_new_weights(folders: tuple[str, str], mode: str) -> None:
    old, new = folders
    with LLM(new, mode=mode, **SETTINGS) as fresh:
        expected = answers(fresh)
    with LLM(old, mode=mode, **SETTINGS) as llm:
        before = answers(llm)
        assert before != expected
        model = llm._require_open().model
        plans = dict(llm._require_open().graphed.plans)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        report = llm.reload_weights(new)
        assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
        assert dict(llm._require_open().graphed.plans) == plans, "no graph was captured for it"
        assert answers(llm) == expected
        assert (report.source, report.num_tensors > 10) == (new, True)
        kinds = {(key.runtime_mode, key.uniform_query_len) for key in plans}
        assert {(key.runtime_mode, key.uniform_query_len) for key in report.qualified} == kinds
        assert len(report.qualified) == len(kinds) < max(len(plans), 1) + (mode != "full_and_piecewise")
        assert llm.stats()["weights"] == {"source": new, "reloads": 1, "whole": True}
        assert llm.reload_weights().source == old, "None: what it was opened with"
        assert answers(llm) == before


def test_dummy_weights_are_made_again(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, has_weights=False, has_tokenizer=False)
    with LLM(str(folder), load_format="dummy", **SETTINGS) as llm:
        expected, before = answers(llm), weights(llm)
        with torch.no_grad():
            for parameter in llm._require_open().model.parameters():
                parameter.mul_(0.5)
        assert not is_as(llm, before)
        assert llm.reload_weights().num_tensors == len(before)
        assert is_as(llm, before) and answers(llm) == expected


def test_while_it_sleeps(folders: tuple[str, str]) -> None:
    old, new = folders
    with LLM(new, **SETTINGS) as fresh:
        expected = answers(fresh)
    with LLM(old, **SETTINGS) as llm:
        llm.sleep()
        assert llm.reload_weights(new).qualified == ()
        llm.wake()
        assert answers(llm) == expected


# --- what does not fit -------------------------------------------------------------------------------


def _other_family(folder: Path) -> str:
    write_tiny_model(folder, "qwen3")
    return "family qwen3 for llama"


def _other_sizes(folder: Path) -> str:
    write_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return "num_layers 1 for 2"


def _other_shape(folder: Path) -> str:
    """The configuration is that of the engine; the tensors are of another model."""
    write_tiny_model(folder, "mistral")
    write_tiny_model(folder, "llama", has_weights=False)
    return "of the wrong shape: model.layers.0.self_attn.k_proj.weight"


def _truncated(folder: Path) -> str:
    write_tiny_model(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "truncated or corrupt"


@pytest.mark.parametrize("plant", [_other_family, _other_sizes, _other_shape, _truncated])
def test_a_checkpoint_that_does_not_fit_changes_nothing(folders: tuple[str, str], tmp_path: Path, plant: Any) -> None:
    told = plant(tmp_path)
    with LLM(folders[0], **SETTINGS) as llm:
        expected, before = answers(llm), weights(llm)
        with pytest.raises(CheckpointError, match=told):
            llm.reload_weights(str(tmp_path))
        assert is_as(llm, before) and answers(llm) == expected
        assert llm.stats()["weights"] == {"source": folders[0], "reloads": 0, "whole": True}


def test_bad_input(folders: tuple[str, str], tmp_path: Path) -> None:
    with LLM(folders[0], **SETTINGS) as llm:
        for model in ("", 7, Path(folders[1])):
            with pytest.raises(ConfigError, match="model is"):
                llm.reload_weights(model)  # type: ignore[arg-type]
        with pytest.raises(ModelNotFoundError):
            llm.reload_weights(str(tmp_path / "absent"))
        name = llm.add_request([5], PARAMS)
        with pytest.raises(RuntimeStateError, match="in progress"):
            llm.reload_weights(folders[1])
        llm.abort(name)
    with pytest.raises(ClosedError):
        llm.reload_weights(folders[1])


# --- verification ------------------------------------------------------------------------------------


def test_a_weight_that_was_moved_is_found_before_anything_is_written(folders: tuple[str, str]) -> None:
    with LLM(folders[0], **SETTINGS) as llm:
        before, model = weights(llm), llm._require_open().model
        model.norm.weight.data = model.norm.weight.data.clone()
        with pytest.raises(AddressChangedError, match="norm"):
            llm.reload_weights(folders[1])
        assert is_as(llm, before) and llm.stats()["weights"]["whole"]


def test_a_graph_that_differs_from_eager_is_told(folders: tuple[str, str]) -> None:
    with LLM(folders[0], mode="piecewise", **SETTINGS) as llm, stale_break_output():
        with pytest.raises(QualificationError, match="DIFFERS"):
            llm.reload_weights(folders[1])
        answers(llm)
        assert "QUARANTINED" in llm.stats()["dispatch"]["by_reason"]


def test_weights_of_two_models_answer_nothing(folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing breaks off in the middle: a tensor cannot be copied."""
    copied: list[torch.Tensor] = []

    def spoiled(target: torch.Tensor, source: torch.Tensor) -> None:
        if len(copied) == 3:
            raise RuntimeError("planted")
        target.copy_(source)
        copied.append(target)

    with LLM(folders[1], **SETTINGS) as fresh:
        expected = answers(fresh)
    with LLM(folders[0], **SETTINGS) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(parallel_copy, "_copy_on_host", spoiled)
            with pytest.raises(RuntimeError, match="planted"):
                llm.reload_weights(folders[1])
        assert llm.stats()["weights"]["whole"] is False
        with pytest.raises(RuntimeStateError, match="of two models") as caught:
            llm.generate([[5]])
        assert "reload_weights()" in caught.value.fix
        llm.reload_weights(folders[1])
        assert answers(llm) == expected
