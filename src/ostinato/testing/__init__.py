"""Shipped to users: conformance suites that say what "correct" means, and fault fixtures."""
