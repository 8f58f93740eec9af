"""Which sizes to capture: ladders and the list of keys."""

from ostinato.runtime.planning.ladders import decode_ladder, token_ladder
from ostinato.runtime.planning.limits import largest_size
from ostinato.runtime.planning.plan import plan_keys

__all__ = ["decode_ladder", "largest_size", "plan_keys", "token_ladder"]
