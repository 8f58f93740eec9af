"""Suites that every implementation of a Protocol must pass: subclass, give the fixture, run pytest."""

from ostinato.testing.conformance.capture_backend import CaptureBackendConformance
from ostinato.testing.conformance.shared_executables import SharedExecutablesConformance
from ostinato.testing.conformance.side_streams import SideStreamConformance

__all__ = ["CaptureBackendConformance", "SharedExecutablesConformance", "SideStreamConformance"]
