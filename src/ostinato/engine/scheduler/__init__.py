"""Who runs next and how many tokens: continuous batching over pages. Pure Python."""

from __future__ import annotations

from ostinato.engine.scheduler.batch import ScheduledBatch, ScheduledRequest
from ostinato.engine.scheduler.deadlines import Deadlines
from ostinato.engine.scheduler.scheduler import Scheduler

__all__ = ["Deadlines", "ScheduledBatch", "ScheduledRequest", "Scheduler"]
