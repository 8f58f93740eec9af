"""Who runs next and how many tokens: continuous batching over pages. No torch."""

from __future__ import annotations

from ostinato.engine.scheduler.batch import ScheduledBatch, ScheduledRequest
from ostinato.engine.scheduler.deadlines import Deadlines
from ostinato.engine.scheduler.decode_rows import DecodeRows, Roster
from ostinato.engine.scheduler.scheduler import Scheduler
from ostinato.engine.scheduler.shaping import BatchShaper

__all__ = ["BatchShaper", "Deadlines", "DecodeRows", "Roster", "ScheduledBatch", "ScheduledRequest", "Scheduler"]
