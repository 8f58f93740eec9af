"""What blocks the capture of a callable, where, and which breaks mend it."""

from ostinato.runtime.doctor.diagnose import diagnose
from ostinato.runtime.doctor.findings import Diagnosis, ModeOutcome, OpFinding, SuggestedBreak
from ostinato.runtime.doctor.render import render

__all__ = ["Diagnosis", "ModeOutcome", "OpFinding", "SuggestedBreak", "diagnose", "render"]
