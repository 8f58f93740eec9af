"""Planted faults: the known ways in which graph replay gives wrong answers, each with a control."""

from ostinato.testing.faults.fault import Fault, Outcome, Plant, agree
from ostinato.testing.faults.registry import ALL

__all__ = ["ALL", "Fault", "Outcome", "Plant", "agree"]
