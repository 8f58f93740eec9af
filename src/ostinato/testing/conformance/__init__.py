"""Suites that every implementation of a Protocol must pass: subclass, give the fixture, run pytest."""

from ostinato.testing.conformance.capture_backend import CaptureBackendConformance

__all__ = ["CaptureBackendConformance"]
