"""The amount of host memory that can be pinned here, found by pinning block after block and releasing them
all.

Never more than half of what is free: the rest of the machine must not be swapped out meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...graphs.units import format_bytes
from ..device.device import Device, PinError, Unpin
from ..device.host_capacity import available_bytes, host_pages, lockable_bytes

SHARE = 0.5
"""Share of the free memory that is pinned at most."""

SMALLEST = 2**28
"""Bytes of the smallest block: the result is right to within so much."""

UNASKED = 2**34
"""Most bytes to pin if the system does not say what is free."""


class Pinnable(NamedTuple):
    """Host memory that can be pinned.

    bytes: None if a device needs none that is pinned.
    source: the ground for the number, in words.
    """

    bytes: int | None
    source: str


def pinnable(device: Device, smallest: int = SMALLEST) -> Pinnable:
    """Find out how much host memory the device can pin. This takes a second for each 2 GiB or so.

    smallest: bytes of the smallest block that is tried.
    """
    free = available_bytes()
    most = int(SHARE * free) if free is not None else UNASKED
    pinned: list[tuple[Tensor, Unpin]] = []
    total, piece, fault = 0, smallest, None
    try:
        while piece >= smallest and total < most:
            size = min(piece, most - total)
            try:
                memory = host_pages(size)
                unpin = device.pin(memory)
            except (PinError, OSError) as error:
                fault = fault or error
                piece //= 2
                continue
            if unpin is None:
                return Pinnable(
                    None, f"{device.name()} copies from any host memory at one rate: none is pinned"
                )
            pinned.append((memory, unpin))  # memory that is freed while pinned is handed out once more
            total += size
            # Blocks double until the first refusal, then halve: the limit is found in few calls.
            piece = piece // 2 if fault else 2 * piece
    finally:
        for _memory, unpin in pinned:
            unpin()
    if fault is None:
        return Pinnable(
            total, f"half of the {format_bytes(int(total / SHARE))} that are free, all of it pinned"
        )
    return Pinnable(total, f"pinned here until it was refused: {fault}; {lock_limit()}")


def lock_limit() -> str:
    limit = lockable_bytes()
    return f"ulimit -l is {'unlimited' if limit is None else f'{limit // 1024:,} KiB'}"
