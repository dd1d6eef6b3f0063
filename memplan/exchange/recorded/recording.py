"""A recording of memory: blocks with their lifetimes and the code that allocated them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Frame(NamedTuple):
    """A frame of a stack, or an operator around an allocation, whose file is empty."""

    file: str
    line: int
    name: str


class Block(NamedTuple):
    """Bytes that were allocated.

    begin, end: places in the recording; begin is -1 if it was there before, end is None if it is never freed.
    frames: of the code that allocated it, innermost first.
    kind, module, name: if the file says them itself: of owners.KINDS, of the modules, what to call a block
        without frames.
    """

    size: int
    begin: int
    end: int | None
    frames: tuple[Frame, ...] = ()
    kind: str = ""
    module: str = ""
    name: str = ""


SOURCES = SNAPSHOT, PROFILE, XLA = "snapshot", "profile", "xla"


class Recording:
    """The memory of one device.

    device: as the file names it.
    blocks: all that were there.
    reserved: bytes that the allocator holds, None if unknown.
    oom: bytes of the allocation that failed, None if none did.
    source: of SOURCES, what wrote it.
    """

    def __init__(
        self,
        device: str,
        blocks: Sequence[Block],
        reserved: int | None = None,
        oom: int | None = None,
        source: str = SNAPSHOT,
    ) -> None:
        self.device, self.blocks, self.reserved, self.oom = device, blocks, reserved, oom
        self.source = source

    @cached_property
    def _peak(self) -> tuple[int, int]:
        """The place and the bytes of the most that is allocated at once, the first place of equals."""
        last = 1 + max((max(one.begin, one.end or 0) for one in self.blocks), default=0)
        change = np.zeros(last + 2, np.int64)
        for one in self.blocks:
            change[one.begin + 1] += one.size
            if one.end is not None:
                change[one.end + 1] -= one.size
        there = np.cumsum(change)
        place = int(there.argmax()) if len(there) else 0
        return place - 1, int(there[place])

    @property
    def peak(self) -> int:
        return self._peak[1]

    def at_peak(self) -> Iterator[Block]:
        """Yield the blocks that are there at the peak."""
        place = self._peak[0]
        for one in self.blocks:
            if one.begin <= place and (one.end is None or one.end > place):
                yield one
