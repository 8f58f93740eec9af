"""Other systems, measured in the same run with the same prompts; each file knows one of them."""

from ostinato.bench.peers.registry import PEERS, Peer, check_peers, open_peer

__all__ = ["PEERS", "Peer", "check_peers", "open_peer"]
