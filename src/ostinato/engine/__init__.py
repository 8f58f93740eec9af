"""The LLM engine: paged KV cache, continuous batching and sampling on captured graphs.

Needs the ``engine`` extra. The runtime never imports from here.
"""
