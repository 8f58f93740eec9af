"""Who holds which bytes."""

from ostinato.runtime.memory.ledger import Ledger

__all__ = ["Ledger"]
