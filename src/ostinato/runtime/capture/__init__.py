"""The only talk with the device about graphs: one Protocol, a CUDA and a simulated implementation."""

from ostinato.runtime.capture.backend import (
    BakedCall,
    CaptureBackend,
    CapturedGraph,
    DeviceUsage,
    GraphStep,
    PoolMemory,
)
from ostinato.runtime.capture.executables import ExecutableCounts
from ostinato.runtime.capture.externals import External
from ostinato.runtime.capture.gate import CaptureGate
from ostinato.runtime.capture.generation import Generation
from ostinato.runtime.capture.generators import GeneratorLog, GeneratorStates, generators_in
from ostinato.runtime.capture.hardware import driver_version, hardware_name
from ostinato.runtime.capture.select import BACKENDS, as_device, select_backend

__all__ = [
    "BACKENDS",
    "BakedCall",
    "CaptureBackend",
    "CaptureGate",
    "CapturedGraph",
    "DeviceUsage",
    "ExecutableCounts",
    "External",
    "Generation",
    "GeneratorLog",
    "GeneratorStates",
    "GraphStep",
    "PoolMemory",
    "as_device",
    "driver_version",
    "generators_in",
    "hardware_name",
    "select_backend",
]
