"""Host memory that a device has pinned, in one block, for copies at offsets that were planned.

PyTorch's own pinned memory comes in powers of two bytes, each for blocks of its size alone, and is never
given back: 772 MiB take 1 GiB. Here a plan takes what it needs, once, until nobody has it any more.
"""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor

from ...graphs.units import format_bytes
from ...torch_support.unsupported import warn_user
from ..device.device import Device, PinError
from ..device.host_capacity import host_pages


class Arena:
    """Pinned host memory in one block. Use `pinned_arena` to make it.

    size: bytes.
    """

    def __init__(self, device: Device, size: int) -> None:
        """Allocate and pin the memory. Raises PinError, OSError."""
        self.size = size
        memory = host_pages(size)
        self._bytes = memory.numpy()
        if (unpin := device.pin(memory)) is not None:
            # At exit the driver may be gone already; it unpins a process's memory by itself.
            weakref.finalize(self, unpin).atexit = False

    def bytes(self, offset: int, size: int) -> Tensor:
        """Return a tensor with a separate storage, which begins at the offset."""
        return torch.from_numpy(self._bytes[offset : offset + size])


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def pinned_arena(device: Device, size: int, limit: int | None) -> Arena | None:
    """Allocate a pinned arena of `size` bytes; None, with a warning, if that is refused.

    Copies are slower then, from and to memory that is not pinned.

    limit: bytes, of all plans of this process together.
    """
    if limit is not None and sum(arena.size for arena in _arenas) + size > limit:
        gc.collect()  # plans that nobody has any more
    others = sum(arena.size for arena in _arenas)
    try:
        if limit is not None and others + size > limit:
            raise PinError(f"host.pinned is {limit:,} bytes, {others:,} of them other plans'")
        arena = Arena(device, size)
    except (PinError, OSError) as error:
        warn_user(
            f"{format_bytes(size)} of host memory can't be pinned: {error}; copies to and from the device "
            "will be slower than planned: allow more (ulimit -l; docker run --ulimit memlock=-1), or plan "
            "for less (host.pinned)"
        )
        return None
    _arenas.add(arena)
    return arena
