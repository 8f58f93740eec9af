"""A plan replayed alone reads inputs that fit it, whatever step came before."""

from __future__ import annotations

import pytest

from ostinato import LLM, SamplingParams
from ostinato.bench.engine_probe import decode_key, facade_of, fill_decode_inputs, replay_ms
from ostinato.testing.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"), has_weights=False, has_tokenizer=False)
    sizes = {"max_num_reqs": 4, "max_num_batched_tokens": 16, "decode_sizes": (1, 4), "token_sizes": (16,)}
    with LLM(str(model), device="cpu", load_format="dummy", max_model_len=64, kv_tokens=512, **sizes) as llm:
        yield llm


def test_a_replay_after_steps_of_another_size(llm: LLM) -> None:
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True))  # leaves the layout of one request
    key = decode_key(llm, num_reqs=4, context_tokens=20)
    assert key is not None and key.num_reqs == 4
    assert len(replay_ms(llm, key, num_live=4, context_tokens=20, repeats=2)) >= 2


def test_each_request_has_pages_of_its_own(llm: LLM) -> None:
    key = decode_key(llm, num_reqs=4, context_tokens=20)
    assert key is not None
    fill_decode_inputs(llm, key, context_tokens=20)
    graphed = facade_of(llm)
    views = graphed.buffers.views(graphed.key_sizes(key))
    page_size = llm.config.page_size
    assert views["positions"].tolist() == [19] * 4 and views["seq_lens"].tolist() == [20] * 4
    used = views["block_tables"][:, : -(-20 // page_size)].flatten().tolist()
    assert len(set(used)) == len(used) and 0 not in used
    assert (views["slot_mapping"] // page_size).tolist() == views["block_tables"][:, 19 // page_size].tolist()
    assert views["query_start"].tolist() == [0, 1, 2, 3, 4] and views["sampled_rows"].tolist() == [0, 1, 2, 3]
