"""The values that an iteration overwrites, kept in host memory until it has ended: one that fails can then
be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from threading import Lock

from torch import Tensor

from ...graphs.machine import Memory
from ..device.device import Device, Event, PinError, Stream, StreamDevice
from .arena import Arena
from .copies import copy_common, own_bytes, raw
from .host_buffers import Host, HostBuffer
from .shortage import ShortageError

_ALIGNMENT = 64
"""Bytes; a copy begins at a multiple."""


class Journal:
    """Journal of what an iteration changes.

    kept: by storage, its bytes before this iteration changed it.
    overwritten: changed storages that are not kept.
    complete: every iteration can be undone.
    option: the user's, because of which it is complete.

    Copies lie in one pinned arena, which is made for the first and stays: to pin each by itself would take
    longer than to copy it.
    """

    def __init__(
        self,
        device: Device,
        sizes: Mapping[int, int],
        rows: Container[int] = (),
        *,
        complete: bool = False,
        option: str = "",
    ) -> None:
        """Start with nothing kept.

        sizes: bytes of each storage that is kept before it is changed; with `complete` of all that change.
        rows: storages of blocks of rows, whose tensors may be views of a larger one.

        Raises ShortageError if there is not that much host memory.
        """
        self.kept: dict[int, HostBuffer] = {}
        self.overwritten: set[int] = set()
        self.complete, self.option = complete, option
        self._device, self._sizes, self._rows = device, sizes, rows
        try:
            self.host = Host(self.bytes)
        except ShortageError as error:
            error.available = None  # whatever the plan, it keeps as much
            raise
        self._room: dict[int, HostBuffer] = {}
        self._offsets: dict[int, int] | None = None
        self._opening = Lock()
        self._stream: Stream | None = None
        self._ahead: dict[int, tuple[HostBuffer, Event]] = {}

    @property
    def bytes(self) -> int:
        """The bytes that it keeps of an iteration at most."""
        return sum(self._sizes.values())

    def shortage(self, planned: int, capacity: int) -> ShortageError:
        """Return the error of a host that has no room for it and for `planned` bytes of a schedule."""
        line = (
            f"{self.option} keeps {self.bytes:,} bytes in host memory in addition to the "
            f"{planned:,} of the schedule; the machine has {capacity:,}"
        )
        left = capacity - self.bytes
        return ShortageError.of(Memory.HOST, line, left if left >= 0 else None)

    def begin(self) -> None:
        self.kept, self.overwritten, self._ahead = {}, set(), {}

    def copy_ahead(self, changing: Iterable[tuple[int, Tensor]]) -> None:
        """Begin to copy storages of the device while it computes; nothing changes one before its `keep`.

        changing: each storage with a tensor in it, in the order in which they are changed.
        """
        device = self._device
        # Copies to memory that is not pinned would make the thread wait, before it computes anything.
        if not isinstance(device, StreamDevice) or not self._arena_offsets() or self.host.arena is None:
            return
        self._stream = self._stream or device.stream()
        self._stream.wait_event(device.moment())  # the updates of the iteration before
        with device.on(self._stream):
            for storage, there in changing:
                self._ahead[storage] = self._copied(storage, there), device.moment()

    def keep(self, *changing: tuple[int, Tensor | HostBuffer]) -> None:
        """Keep storages' bytes before they are changed.

        changing: each storage with a tensor in it, or its block on the host.
        """
        for storage, there in changing:
            if not self.keeps(storage):
                self.overwritten.add(storage)
            # Only the first change is of a value from before the iteration.
            elif storage not in self.kept:
                self.kept[storage] = self._arrived(storage) or self._copied(storage, there)

    def keep_later(self, *storages: int) -> Callable[[int, HostBuffer], None]:
        """Prepare for a job that will change these storages.

        Returns the function that the job calls just before, with each storage and its block.
        """
        self.overwritten.update(storage for storage in storages if not self.keeps(storage))
        kept = self.kept  # this iteration's: the job may run when the next one has begun

        def keep(storage: int, there: HostBuffer) -> None:
            if self.keeps(storage) and storage not in kept:
                kept[storage] = self._copied(storage, there)

        return keep

    def _arrived(self, storage: int) -> HostBuffer | None:
        """Return the copy that was begun ahead, None if none was; the current stream waits for it."""
        if (ahead := self._ahead.pop(storage, None)) is None:
            return None
        assert isinstance(self._device, StreamDevice)
        block, arrived = ahead
        self._device.current_stream().wait_event(arrived)
        return block

    def keeps(self, storage: int) -> bool:
        return storage in self._sizes

    def _copied(self, storage: int, there: Tensor | HostBuffer) -> HostBuffer:
        if isinstance(there, HostBuffer):
            bytes_ = there.bytes
        else:
            bytes_ = own_bytes(there) if storage in self._rows else raw(there)
        if (block := self._room.get(storage)) is None:
            size = bytes_.nbytes
            with self._opening:  # updates on the host keep from their own thread
                offset = self._arena_offsets().get(storage)
                block = self._room[storage] = self.host.block(size, offset, self._sizes[storage]).open()
        if isinstance(there, HostBuffer):
            block.bytes.copy_(bytes_)
        else:
            # If it is queued, then on the stream that changes `there` next.
            copy_common(self._device, bytes_, block.bytes)
        return block

    def _arena_offsets(self) -> dict[int, int]:
        """Return the offset of each copy in the arena, made at the first call.

        Without an arena, which the system may refuse, each copy has its own memory, which is not pinned.
        """
        if self._offsets is None:
            self._offsets, end = {}, 0
            for storage, size in self._sizes.items():
                self._offsets[storage] = end
                end += -(-size // _ALIGNMENT) * _ALIGNMENT
            # Offsets without an arena are not used (`Host.fitting`).
            with suppress(PinError, OSError):
                self.host.arena = Arena(self._device, end) if end else None
        return self._offsets
