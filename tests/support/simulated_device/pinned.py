"""Pinned host memory, with a limit: registered, or by the rules of PyTorch's caching host allocator.

Of registered memory nothing is handed out; it is known where it is copied. The allocator:

A block has a power of two bytes, is given back to blocks of its own size only, and never returned to the
system. One that copies still read or fill when it is given back is handed to nobody before they have ended:
until then it counts as held.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import RLock
from time import monotonic, sleep

import numpy as np
import torch
from memplan.devices.device.device import PinError
from torch import Tensor

POISON = 0xFF
"""NaN in every floating type, -1 in integers."""


class PinnedBlock:
    """copies: that use it now. held: bytes, 0 when the block is free."""

    __slots__ = ("bytes", "copies", "given_back", "held")

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, POISON, np.uint8)
        self.copies, self.held, self.given_back = 0, 0, False

    def first(self, size: int) -> Tensor:
        """Its first bytes; what holds them does not hold the block."""
        return torch.from_numpy(self.bytes[:size])


class PinnedMemory:
    """held: bytes asked for and not free yet. reserved: taken from the system. held_peak: the most so far."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.held = self.held_peak = self.reserved = 0
        self._free: dict[int, list[PinnedBlock]] = {}
        self._blocks: dict[int, PinnedBlock] = {}
        self._areas: list[tuple[int, int]] = []
        self._copied: list[tuple[int, int]] = []
        self._lock = RLock()

    def register(self, memory: Tensor) -> Callable[[], None]:
        """Pin memory that is there. Raises PinError where the limit is reached. What it returns ends that."""
        area = memory.data_ptr(), memory.data_ptr() + memory.nbytes
        with self._lock:
            if self.limit is not None and self.reserved + memory.nbytes > self.limit:
                raise PinError(f"{self.limit:,} bytes of pinned memory are all there are")
            self.reserved += memory.nbytes
            self._areas.append(area)

        def unregister() -> None:
            self._until_idle(area)
            with self._lock:
                self._areas.remove(area)
                self.reserved -= area[1] - area[0]

        return unregister

    def _until_idle(self, area: tuple[int, int]) -> None:
        """As CUDA does, which waits for the device."""
        end = monotonic() + 5
        while monotonic() < end and any(area[0] <= start < area[1] for start, _end in tuple(self._copied)):
            sleep(1e-3)

    def area_of(self, tensor: Tensor) -> tuple[int, int] | None:
        """The addresses of a tensor in registered memory; None for other memory."""
        start = tensor.data_ptr()
        inside = any(first <= start < end for first, end in self._areas)
        return (start, start + tensor.nbytes) if inside else None

    def in_use(self, tensor: Tensor) -> bool:
        """Whether a copy uses pinned memory that the tensor's is."""
        if (block := self.block_of(tensor)) is not None:
            return block.copies > 0
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        with self._lock:
            return any(start < last and first < end for start, end in self._copied)

    def take(self, size: int) -> Tensor:
        """Raises RuntimeError, as PyTorch does, where the limit is reached."""
        rounded = 1 << max(0, size - 1).bit_length()
        with self._lock:
            free = self._free.get(rounded)
            block = free.pop() if free else self._reserved(rounded)
            block.held, block.given_back = size, False
            self.held += size
            self.held_peak = max(self.held_peak, self.held)
        view = block.bytes[:size]
        weakref.finalize(view, self._give_back, block).atexit = False
        return torch.from_numpy(view)

    def block_of(self, tensor: Tensor) -> PinnedBlock | None:
        """The block that the tensor's memory is; None for other memory."""
        return self._blocks.get(tensor.untyped_storage().data_ptr())

    def use(self, used: PinnedBlock | tuple[int, int]) -> None:
        """A copy of it was given to a stream."""
        with self._lock:
            if isinstance(used, tuple):
                self._copied.append(used)
            else:
                used.copies += 1

    def used(self, used: PinnedBlock | tuple[int, int]) -> None:
        """A copy of it has ended."""
        with self._lock:
            if isinstance(used, tuple):
                self._copied.remove(used)
            else:
                used.copies -= 1
                self._free_if_idle(used)

    def _reserved(self, size: int) -> PinnedBlock:
        if self.limit is not None and self.reserved + size > self.limit:
            raise RuntimeError(f"CUDA error: out of memory: {self.limit:,} bytes of pinned memory")
        block = PinnedBlock(size)
        self.reserved += size
        self._blocks[block.bytes.ctypes.data] = block
        return block

    def _give_back(self, block: PinnedBlock) -> None:
        with self._lock:
            block.given_back = True
            self._free_if_idle(block)

    def _free_if_idle(self, block: PinnedBlock) -> None:
        if block.given_back and not block.copies:
            block.bytes.fill(POISON)
            self.held -= block.held
            block.held, block.given_back = 0, False
            self._free.setdefault(len(block.bytes), []).append(block)
