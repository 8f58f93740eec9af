"""Fixed-address inputs and bridges of graphs: declarations, memory, padding, guards."""

from ostinato.runtime.buffers.bridges import BridgePool
from ostinato.runtime.buffers.call_layout import CallLayout
from ostinato.runtime.buffers.guards import check_baked, check_input
from ostinato.runtime.buffers.places import Place, places_in, places_of
from ostinato.runtime.buffers.replay_guards import PlanGuards, watch_tensors
from ostinato.runtime.buffers.slots import NUM_REQS, NUM_TOKENS, Slot, Tail
from ostinato.runtime.buffers.staging import BindCopy, HostSlots, Staging
from ostinato.runtime.buffers.static import Sizes, StaticBuffers, live_sizes
from ostinato.runtime.buffers.workspace import Workspace

__all__ = [
    "NUM_REQS",
    "NUM_TOKENS",
    "BindCopy",
    "BridgePool",
    "CallLayout",
    "HostSlots",
    "Place",
    "PlanGuards",
    "Sizes",
    "Slot",
    "Staging",
    "StaticBuffers",
    "Tail",
    "Workspace",
    "check_baked",
    "check_input",
    "live_sizes",
    "places_in",
    "places_of",
    "watch_tensors",
]
