"""State whose size is not known yet when graphs are captured over it: addresses now, memory later.

A captured graph holds addresses, so what it reads must have its final place before capture; but how much memory is
left for it is known only after capture. `ReservedRegions` gives a tensor over the largest size that it could have and
backs the beginning of each region, and more of it once it is known how much there will be. Used by an engine for its
KV cache.
"""

from __future__ import annotations

import torch

from ostinato.errors import ConfigError, OutOfMemoryError
from ostinato.runtime.memory.mapped import MappedRange, can_map, granule_bytes

__all__ = ["ReservedRegions"]


class ReservedRegions:
    """Equal regions of one range of addresses, each backed from its beginning up to the same size.

    Where the device cannot back addresses later, all is backed at once and `is_lazy` is False.

    Args:
        num_regions: how many.
        region_bytes: the most that one may come to hold; rounded up to whole granules.
        device: a CUDA device or the CPU.

    Attributes:
        is_lazy: memory comes with `back`.
        granule_bytes: what sizes are rounded up to.
        region_bytes: reserved for each region.
        backed_bytes: of each region, from its beginning, that may be touched.

    Raises:
        ConfigError: sizes that are not positive.
        OutOfMemoryError: so many addresses, or so much memory where `is_lazy` is False, are not to be had.
    """

    def __init__(self, *, num_regions: int, region_bytes: int, device: torch.device) -> None:
        if num_regions < 1 or region_bytes < 1:
            raise ConfigError(
                f"{num_regions} regions of {region_bytes} bytes", fix="reserve at least one region of one byte"
            )
        self.is_lazy = self.can_be_lazy(device)
        self.num_regions = num_regions
        self._mapped: MappedRange | None = None
        with torch.inference_mode(False):
            if self.is_lazy and device.type == "cuda":
                self.granule_bytes = granule_bytes(device)
                self.region_bytes = -(-region_bytes // self.granule_bytes) * self.granule_bytes
                self._mapped = MappedRange(num_regions * self.region_bytes, device)
                # The first granules at once: torch asks the driver to which device an address belongs.
                self.backed_bytes = self.granule_bytes
                self._mapped.back(self._starts(), self.granule_bytes)
                whole = torch.as_tensor(self._mapped, device=device)
                self._whole = whole[: num_regions * self.region_bytes].view(num_regions, self.region_bytes)
                self._whole[:, : self.backed_bytes].zero_()
            else:  # a host's system puts pages behind addresses by itself, as they are touched
                self.granule_bytes, self.region_bytes = 1, region_bytes
                self.backed_bytes = 0 if self.is_lazy else region_bytes
                try:
                    self._whole = torch.zeros(num_regions, region_bytes, dtype=torch.uint8, device=device)
                except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU raises no other
                    raise OutOfMemoryError(
                        f"{device} does not have {num_regions * region_bytes:,} bytes", fix="reserve less"
                    ) from error

    @staticmethod
    def can_be_lazy(device: torch.device) -> bool:
        """Whether ``device`` can put memory behind addresses later."""
        return device.type == "cpu" or can_map(device)

    @property
    def memory(self) -> torch.Tensor:
        """[num_regions, region_bytes] uint8, at addresses that never change. Only the first `backed_bytes` of each
        region may be touched, by kernels too: on CUDA the others are no memory. What is backed is zero at first."""
        return self._whole

    def back(self, region_bytes: int) -> None:
        """Put memory behind the first ``region_bytes`` of each region, rounded up to granules; never less than now.

        Raises:
            ConfigError: more than was reserved.
            OutOfMemoryError: the device has not so much left. Then nothing is changed.
        """
        wanted = -(-region_bytes // self.granule_bytes) * self.granule_bytes
        if wanted > self.region_bytes:
            raise ConfigError(
                f"{wanted} bytes of regions that were reserved with {self.region_bytes}", fix="reserve more at first"
            )
        more = wanted - self.backed_bytes
        if more <= 0:
            return
        if self._mapped is not None:
            self._mapped.back([start + self.backed_bytes for start in self._starts()], more)
            self._whole[:, self.backed_bytes : wanted].zero_()
        self.backed_bytes = wanted

    def give_back(self) -> int:
        """Give the device all memory but the first granule of each region; the bytes. Addresses stay, contents do not.

        Nobody may touch what is beyond until `back` has put memory there again. Where memory does not come by mapping
        (a CPU, a device that cannot map) nothing is given back, and 0 is returned.
        """
        if self._mapped is None:
            return 0
        given_back = self._mapped.take_away(keep=self._starts())
        self.backed_bytes = self.granule_bytes
        return given_back

    def _starts(self) -> list[int]:
        return [region * self.region_bytes for region in range(self.num_regions)]
