"""`Workspace`: scratch memory that several kernels share, and that stands still once a graph has its address.

Grows freely while warm-up finds out how much is needed. From the first recording that asks for it on, a larger
request is refused: the graphs would go on using the old memory, which the next allocation may have. For kernels
launched by hand; what ops of torch need, the graph's own pool holds.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError, WorkspaceGrowthError
from ostinato.runtime.breaks import is_recording
from ostinato.runtime.capture import as_device

__all__ = ["Workspace"]


class Workspace:
    """Bytes on one device, written and read within one launch; nothing is kept in them from launch to launch.

    Args:
        name: for messages.
        device: where it lies.
        num_bytes: to begin with.

    Raises:
        ConfigError: no number of bytes, or more than there is.
        DeviceUnavailableError: no such device on this machine.
    """

    def __init__(self, name: str, *, device: torch.device | str, num_bytes: int = 0) -> None:
        self.name = name
        self._is_captured = False
        self._memory = self._allocate(num_bytes, as_device(device))

    @property
    def num_bytes(self) -> int:
        """Bytes that it has."""
        return self._memory.numel()

    @property
    def is_captured(self) -> bool:
        """Whether a graph has its address, so that it may not grow."""
        return self._is_captured

    def reserve(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8, uninitialised, at the workspace's start; valid until the next larger request.

        Raises:
            WorkspaceGrowthError: more than it has is asked for in a capture, or after one.
            ConfigError: no number of bytes, or more than there is.
        """
        is_in_capture = is_recording()
        if _checked(self.name, num_bytes) > self.num_bytes:
            if is_in_capture or self._is_captured:
                raise WorkspaceGrowthError(
                    f"workspace {self.name!r} would grow {'in' if is_in_capture else 'after'} a capture and move",
                    fix="reserve the largest size in warm_up(), or release() the graphs, unlock() it and recapture()",
                    expected=f"at most {self.num_bytes} bytes",
                    got=num_bytes,
                )
            self._memory = self._allocate(num_bytes, self._memory.device)
        self._is_captured = self._is_captured or is_in_capture
        return self._memory[:num_bytes]

    def unlock(self) -> None:
        """Let it grow again. Call it when all graphs that use it are released, and never before."""
        self._is_captured = False

    def _allocate(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        try:
            with torch.inference_mode(False):  # wherever it is made, it can be written everywhere
                return torch.empty(_checked(self.name, num_bytes), dtype=torch.uint8, device=device)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise ConfigError(f"workspace {self.name!r} cannot have {num_bytes:,} bytes", fix="ask for less") from error


def _checked(name: str, num_bytes: int) -> int:
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes < 0:
        raise ConfigError(f"{num_bytes!r} bytes are asked of workspace {name!r}", fix="ask for a whole number")
    return num_bytes
