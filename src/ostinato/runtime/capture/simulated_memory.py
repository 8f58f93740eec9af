"""The memory of the simulated backend: a pool that recycles, and externals that can die.

A CUDA graph holds raw addresses, not tensors. To be as wrong as that, a recording must not keep the
program's tensors alive; so each block of memory is seen through two storages: one that the program's
tensors use, whose death frees the block, and one that the recording replays into.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Block", "ExternalMemory", "SimulatedPool", "poison"]

_ALIGNMENT_BYTES = 64  # torch's own CPU alignment: equal alignment keeps vectorised kernels bitwise equal
_GRANULE_BYTES = 512


def poison(storage: torch.UntypedStorage) -> None:
    """Fill with 0xFF: NaN in every floating dtype, -1 in every signed integer dtype."""
    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)


class Block:
    """A piece of pool memory. Lives as long as the pool or a recording refers to it."""

    def __init__(self, capacity_bytes: int) -> None:
        raw = torch.empty(capacity_bytes + _ALIGNMENT_BYTES, dtype=torch.uint8)
        skip = -raw.data_ptr() % _ALIGNMENT_BYTES
        self.capacity_bytes = capacity_bytes
        self._memory = raw[skip : skip + capacity_bytes].numpy()
        self.recorded = torch.frombuffer(self._memory.data, dtype=torch.uint8).untyped_storage()
        self._program: StorageWeakRef | None = None

    def lend(self, nbytes: int) -> torch.UntypedStorage:
        """A fresh storage of ``nbytes`` over this memory, for the program; the block is in use until it dies."""
        storage = torch.frombuffer(self._memory.data, dtype=torch.uint8, count=max(nbytes, 1)).untyped_storage()
        self._program = StorageWeakRef(storage)
        return storage

    def recorded_view(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with the geometry of ``tensor`` over this block, as the recording sees it."""
        geometry = (tensor.storage_offset(), tensor.size(), tensor.stride())
        view = torch.empty(0, dtype=tensor.dtype).set_(self.recorded, *geometry)
        return torch._neg_view(view) if tensor.is_neg() else view

    @property
    def is_free(self) -> bool:
        """Whether no tensor of the program is left in this block."""
        return self._program is None or self._program.expired()


class SimulatedPool:
    """Blocks shared by all captures of one backend, reused best fit as soon as the program drops them."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._in_use: dict[int, Block] = {}  # address of the program's StorageImpl -> block
        self._free: list[Block] = []

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.capacity_bytes for block in self._blocks)

    @property
    def live_bytes(self) -> int:
        """Bytes of the blocks that a tensor of the program lies in."""
        return sum(block.capacity_bytes for block in self._in_use.values() if not block.is_free)

    def take(self, nbytes: int) -> tuple[Block, torch.UntypedStorage]:
        """A block of at least ``nbytes`` and the storage through which the program sees it."""
        self.reclaim()
        fitting = [b for b in self._free if b.capacity_bytes >= nbytes]
        if fitting:
            block = min(fitting, key=lambda b: b.capacity_bytes)
            self._free.remove(block)
        else:
            block = Block(max(_GRANULE_BYTES, -(-nbytes // _GRANULE_BYTES) * _GRANULE_BYTES))
            self._blocks.append(block)
        storage = block.lend(nbytes)
        self._in_use[storage._cdata] = block
        return block, storage

    def find(self, storage: torch.UntypedStorage) -> Block | None:
        """The block whose program storage this is, or None: then the memory is not the pool's."""
        block = self._in_use.get(storage._cdata)
        return None if block is None or block.is_free else block

    def reclaim(self, *, poisoned: bool = False) -> None:
        """Move blocks that the program has dropped to the free list, poisoned if asked."""
        dead = [cdata for cdata, block in self._in_use.items() if block.is_free]
        for cdata in dead:
            block = self._in_use.pop(cdata)
            if poisoned:
                poison(block.recorded)
            self._free.append(block)

    def trim(self) -> None:
        """Give back the blocks that no tensor of the program lies in. Call it when no graph is left."""
        self.reclaim()
        self._blocks = list(self._in_use.values())
        self._free.clear()

    def close(self) -> None:
        """Forget all blocks; recordings and tensors that still use one keep it alive."""
        self._blocks.clear()
        self._in_use.clear()
        self._free.clear()


class ExternalMemory:
    """A storage that a recording reads and that is not the pool's: an input, a weight, a break's tensor.

    Replay must not crash when its owner has let go, but must not work either: `poison_if_dead` makes the
    stale read visible, as reused memory would on a device.
    """

    def __init__(self, tensor: torch.Tensor, *, is_constant: bool) -> None:
        self._storage = tensor.untyped_storage()
        self._aliases: dict[tuple[object, ...], torch.Tensor] = {}
        self.is_constant = is_constant
        self._is_poisoned = False

    @property
    def cdata(self) -> int:
        """Address of the StorageImpl, the identity of this memory."""
        return int(self._storage._cdata)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of ours with the geometry of ``tensor``."""
        key = (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.is_conj(), tensor.is_neg())
        if key not in self._aliases:
            self._aliases[key] = tensor.detach()
        return self._aliases[key]

    def poison_if_dead(self) -> None:
        """Poison once, when nobody but this record refers to the storage any more."""
        if self.is_constant or self._is_poisoned:
            return
        ours = len(self._aliases) + 1  # each alias is one TensorImpl; the Python storage object is one more
        if torch._C._storage_Use_Count(self._storage._cdata) <= ours:
            poison(self._storage)
            self._is_poisoned = True
