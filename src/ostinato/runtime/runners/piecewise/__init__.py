"""Piecewise graphs of traced callables: breaks as ops, split before the compiler or after it."""

from ostinato.runtime.runners.piecewise.runner import CompiledRunner

__all__ = ["CompiledRunner"]
