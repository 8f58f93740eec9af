"""The table of peers: which package each needs, which scenarios it can join, and how it is opened.

A peer that is not installed is skipped with a message; one that does not exist is an error before anything is
measured. To add one: a file beside this with ``open_peer(name, settings)``, and a line in the table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol

from ostinato.errors import ConfigError, UnknownNameError

__all__ = ["PEERS", "Peer", "PeerEntry", "PeerSettings", "check_peers", "missing", "open_peer"]

_TEXT: Final = frozenset({"decode", "prefill"})


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """What a peer engine is opened with."""

    model: str
    load_format: str
    device: str
    dtype: str
    """A torch dtype's name: "bfloat16"."""
    max_model_len: int
    max_num_reqs: int
    max_num_batched_tokens: int
    warm_up_tokens: tuple[int, int]
    """Prompt length and output length of the largest request that will be sent."""


class Peer(Protocol):
    """An engine of somebody else."""

    def generate_seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Wall time until every prompt has ``num_tokens`` greedy output tokens.

        Raises:
            RuntimeError: some prompt has not got them.
        """
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


@dataclass(frozen=True, kw_only=True)
class PeerEntry:
    """One line of the table."""

    package: str
    """As an index names it."""
    module: str
    """As Python imports it."""
    file: str
    scenarios: frozenset[str]


def _entry(package: str, file: str, scenarios: frozenset[str] = _TEXT) -> PeerEntry:
    return PeerEntry(package=package, module=package.replace("-", "_"), file=file, scenarios=scenarios)


PEERS: Final[dict[str, PeerEntry]] = {
    "vllm": _entry("vllm", "vllm_engine"),
    "transformers-eager": _entry("transformers", "transformers_model"),
    "transformers-static": _entry("transformers", "transformers_model"),
    "transformers-continuous": _entry("transformers", "transformers_model"),
    "breakable-cuda-graphs": _entry("breakable-cuda-graphs", "breakable_graphs", frozenset({"segments"})),
}


def check_peers(names: Sequence[str], *, scenario: str) -> None:
    """Raise what is wrong with ``names``.

    Raises:
        UnknownNameError: there is no such peer.
        ConfigError: the peer cannot run this scenario.
    """
    for name in names:
        if name not in PEERS:
            raise UnknownNameError.of("peer", name, list(PEERS))
        if scenario not in PEERS[name].scenarios:
            fitting = [peer for peer, entry in PEERS.items() if scenario in entry.scenarios]
            raise ConfigError(
                f"the peer {name} has no part in {scenario}", fix=f"peers of {scenario}: {', '.join(fitting) or 'none'}"
            )


def missing(name: str) -> str | None:
    """Why the peer cannot be opened here, or None."""
    entry = PEERS[name]
    if importlib.util.find_spec(entry.module) is None:
        return f"the package {entry.package} is not installed"
    return None


def open_peer(name: str, settings: PeerSettings) -> Peer:
    """Load and warm up the peer. Whatever its package raises comes through."""
    peer: Peer = import_module(f"ostinato.bench.peers.{PEERS[name].file}").open_peer(name, settings)
    return peer
