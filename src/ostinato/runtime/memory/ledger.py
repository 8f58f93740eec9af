"""`Ledger`: who holds which bytes. Pure arithmetic; the measuring is done by whoever fills it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostinato.errors import ConfigError

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """Bytes by owner. An owner's bytes are never negative and never counted twice."""

    owners: dict[str, int] = field(default_factory=dict)

    def enter(self, owner: str, num_bytes: int) -> None:
        """Enter ``owner`` once with ``num_bytes``.

        Raises:
            ConfigError: negative bytes, or the owner stands in the ledger already.
        """
        if num_bytes < 0:
            raise ConfigError(f"{owner} would hold {num_bytes} bytes", fix="measure after the allocation, not before")
        if owner in self.owners:
            raise ConfigError(f"{owner} is in the ledger already", fix="enter each owner once")
        self.owners[owner] = num_bytes

    @property
    def total_bytes(self) -> int:
        """Sum over all owners."""
        return sum(self.owners.values())

    def to_dict(self) -> dict[str, int]:
        """Owner -> bytes, with the total."""
        return {**self.owners, "total": self.total_bytes}

    def __str__(self) -> str:
        width = max((len(owner) for owner in self.owners), default=0)
        rows = [f"{owner:<{width}}  {num_bytes / 2**20:10.2f} MiB" for owner, num_bytes in self.to_dict().items()]
        return "\n".join(rows)
