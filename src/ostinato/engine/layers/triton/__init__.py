"""Triton kernels of the layers, imported only where they run."""
