"""Logits against Hugging Face transformers, where it is installed, with weights copied by name."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

TOKENS = [3, 17, 60, 0, 22, 22, 41, 5, 9, 33, 12, 44]


def test_logits_agree(hf, make_engine):
    keys = {k: v for k, v in hf.items() if k != "architectures"}
    config = getattr(transformers, hf["architectures"][0].replace("ForCausalLM", "Config"))(
        **keys, attn_implementation="eager"
    )
    torch.manual_seed(0)
    theirs = getattr(transformers, hf["architectures"][0])(config).eval().float()
    with torch.no_grad():
        for parameter in theirs.parameters():  # their own initialisation is too small to tell models apart
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.dim() == 1 else 0.0))
        expected = theirs(torch.tensor([TOKENS])).logits[0]
    assert expected.abs().max() > 1.0
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "rotary" not in name}
    engine = make_engine({**theirs.config.to_dict(), "architectures": hf["architectures"]}, state)
    got = [engine.step({"a": TOKENS[:6]})["a"], engine.step({"a": TOKENS[6:9]})["a"]]
    got += [engine.step({"a": [token]}, uniform=1)["a"] for token in TOKENS[9:]]
    assert (torch.cat(got) - expected).abs().max() <= 1e-4
