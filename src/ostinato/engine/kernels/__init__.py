"""How Triton kernels are launched: cheaply outside of graphs, and early.

Below attention and the layers, whose kernels they are.
"""
