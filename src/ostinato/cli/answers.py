"""`Answer`: what became of one prompt, as commands print it. Plain values; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.engine.request import FinishReason
from ostinato.errors import OstinatoError

__all__ = ["Answer"]


@dataclass(kw_only=True)
class Answer:
    """The text that followed one prompt, or the error in its place.

    Attributes:
        prompt: as the user wrote it, without what a chat template puts around it.
        finish_reason: None while the request runs.
    """

    prompt: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: OstinatoError | None = None

    @classmethod
    def failed(cls, prompt: str, error: OstinatoError) -> Answer:
        """The answer of a request that was refused."""
        return cls(prompt=prompt, finish_reason=FinishReason.ERROR, error=error)

    def to_dict(self) -> dict[str, Any]:
        """The answer as ``--json`` shows it; the key ``error`` is there only when there is one."""
        entry: dict[str, Any] = {
            "prompt": self.prompt,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": None if self.finish_reason is None else str(self.finish_reason),
        }
        if self.error is not None:
            entry["error"] = self.error.to_dict()
        return entry
