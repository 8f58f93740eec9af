"""The version of the package, in the one place that the build reads it from."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
