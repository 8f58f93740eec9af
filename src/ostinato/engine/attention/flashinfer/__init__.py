"""Attention by FlashInfer's kernels: planned on the host once a step, outside of any graph, and run inside."""
