"""Graph against eager, before serving and while serving: what differs is quarantined."""

from ostinato.runtime.qualify.bisect import Culprit
from ostinato.runtime.qualify.cases import Case, QualificationCases, RandomCases, live_counts, sizes_to_try
from ostinato.runtime.qualify.poison import Poison
from ostinato.runtime.qualify.qualifier import Qualifier
from ostinato.runtime.qualify.report import Finding, FindingKind, KeyReport, QualificationReport
from ostinato.runtime.qualify.shadow import Resume, ShadowCounts, ShadowOwner, WholeState
from ostinato.runtime.qualify.states import Writes
from ostinato.runtime.qualify.subject import Subject, integer_ranges, written_state

__all__ = [
    "Case",
    "Culprit",
    "Finding",
    "FindingKind",
    "KeyReport",
    "Poison",
    "QualificationCases",
    "QualificationReport",
    "Qualifier",
    "RandomCases",
    "Resume",
    "ShadowCounts",
    "ShadowOwner",
    "Subject",
    "WholeState",
    "Writes",
    "integer_ranges",
    "live_counts",
    "sizes_to_try",
    "written_state",
]
