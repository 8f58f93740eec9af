"""Steps: live ones, and made-up ones that are timed."""

from ostinato.runtime.steps.live import LiveSteps, no_grad
from ostinato.runtime.steps.made_up import MadeUpSteps
from ostinato.runtime.steps.measuring import Measuring

__all__ = ["LiveSteps", "MadeUpSteps", "Measuring", "no_grad"]
