"""Row 22: an exception inside a break during capture is hidden by the clean-up's own assertion."""

from __future__ import annotations

import torch

from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.testing.faults.bare import bare_backend
from ostinato.testing.faults.fault import Fault, Outcome, Plant

__all__ = ["HIDDEN_ERROR"]

_EXPECTED = "LookupError('page 7 is gone')"


class _Metadata:
    """A break that works in warm-up and fails at one capture."""

    def __init__(self) -> None:
        self.is_broken = False

    def read(self, h: torch.Tensor) -> torch.Tensor:
        if self.is_broken and h.shape[0] == 4:
            raise LookupError("page 7 is gone")
        return h


def _protected(device: str) -> Outcome:
    metadata = _Metadata()
    x = torch.ones(4, 2, device=device)
    config = GraphConfig(mode="piecewise", sizes=(2, 4))
    with Graphed(lambda t: graph_break(metadata.read)(t + 1) * 2, example=(x,), config=config) as graphed:
        graphed.warm_up()
        metadata.is_broken = True
        report = graphed.capture()
        metadata.is_broken = False
        is_usable = [key.num_tokens for key in report.captured] == [2] and bool(graphed(x[:2]).eq(4).all())
        return (_EXPECTED, True), (repr(report.first_error), is_usable)


def _unprotected(device: str) -> Outcome:
    metadata = _Metadata()
    metadata.is_broken = True
    x = torch.ones(4, 2, device=device)
    with bare_backend(device) as backend:
        try:
            with backend.phase(), backend.session():
                backend.begin()
                h = x + 1
                backend.end()
                try:
                    metadata.read(h)
                    backend.begin()
                finally:
                    backend.end()  # takes for granted that the next segment is open
        except Exception as error:
            return _EXPECTED, repr(error)
    raise AssertionError("the break raises")


HIDDEN_ERROR = Fault(
    row=22,
    title="an exception inside a break during capture is hidden by the clean-up's own assertion",
    source="SGLang source",
    protection="a failed key is dropped alone, and its first error is kept and raised",
    cost="none",
    plant=Plant(protected=_protected, unprotected=_unprotected),
)
