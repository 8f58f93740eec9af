"""Choose key and mode for each step, with a reason."""

from ostinato.runtime.dispatch.decision import Decision, Reason, Rejection
from ostinato.runtime.dispatch.dispatcher import Dispatcher
from ostinato.runtime.dispatch.policy import KeyTable, choose
from ostinato.runtime.dispatch.ranks import agree_on
from ostinato.runtime.dispatch.resolve import ModeRequest, ResolvedMode, resolve_mode

__all__ = [
    "Decision",
    "Dispatcher",
    "KeyTable",
    "ModeRequest",
    "Reason",
    "Rejection",
    "ResolvedMode",
    "agree_on",
    "choose",
    "resolve_mode",
]
