"""Who holds which bytes."""

from ostinato.runtime.memory.device_view import DeviceView
from ostinato.runtime.memory.driver import driver
from ostinato.runtime.memory.growth import CaptureCost, GraphGrowth
from ostinato.runtime.memory.ledger import Ledger
from ostinato.runtime.memory.reserved import ReservedRegions

__all__ = ["CaptureCost", "DeviceView", "GraphGrowth", "Ledger", "ReservedRegions", "driver"]
