"""Page arithmetic."""

from __future__ import annotations

from ostinato.engine.kvcache import bytes_per_token, how_many_pages, pages_for_tokens


def test_bytes_per_token_counts_keys_and_values_of_all_layers():
    # Llama-3.2-1B in bfloat16: 16 layers, 8 heads of 64.
    assert bytes_per_token(num_layers=16, num_kv_heads=8, head_dim=64, element_bytes=2) == 32 * 1024


def test_how_many_pages_rounds_down():
    assert how_many_pages(budget_bytes=1000, page_size=4, token_bytes=25) == 10
    assert how_many_pages(budget_bytes=1099, page_size=4, token_bytes=25) == 10


def test_a_negative_budget_holds_nothing():
    assert how_many_pages(budget_bytes=-5, page_size=4, token_bytes=25) == 0


def test_pages_for_tokens_adds_the_null_page():
    assert [pages_for_tokens(num_tokens=n, page_size=16) for n in (0, 1, 16, 17)] == [1, 2, 2, 3]
