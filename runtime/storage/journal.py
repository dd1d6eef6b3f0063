"""The values that an iteration overwrites, kept in host memory until it has ended: one that fails can then
be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from ..device.device import Device
from .copies import offload
from .host_buffers import Host, HostBuffer


class Journal:
    """Journal of what an iteration changes.

    kept: by storage, its bytes before this iteration changed it.
    overwritten: changed storages that are not kept.
    always: storages to keep, None for all. Their host memory is allocated once, and stays.
    """

    def __init__(self, device: Device, always: Collection[int] | None, needed: int = 0) -> None:
        """Start with nothing kept.

        needed: bytes on the host.

        Raises InputError if the machine has not that much.
        """
        self.kept: dict[int, HostBuffer] = {}
        self.overwritten: set[int] = set()
        self._device, self._always = device, always
        self.host = Host(needed, device)
        self._room: dict[int, HostBuffer] = {}

    @property
    def complete(self) -> bool:
        """Tell whether every iteration can be undone."""
        return self._always is None

    def begin(self) -> None:
        self.kept, self.overwritten = {}, set()

    def keep(self, *changing: tuple[int, Tensor | HostBuffer]) -> None:
        """Keep storages' bytes before they are changed.

        changing: each storage with a tensor in it, or its block on the host.
        """
        for storage, there in changing:
            if not self.keeps(storage):
                self.overwritten.add(storage)
            elif storage not in self.kept:
                self.kept[storage] = self._copied(storage, there)

    def keep_later(self, *storages: int) -> Callable[[int, HostBuffer], None]:
        """Prepare for a job that will change these storages.

        Returns the function that the job calls just before, with each storage and its block.
        """
        self.overwritten.update(storage for storage in storages if not self.keeps(storage))
        kept = self.kept

        def keep(storage: int, there: HostBuffer) -> None:
            if self.keeps(storage) and storage not in kept:
                kept[storage] = self._copied(storage, there)

        return keep

    def keeps(self, storage: int) -> bool:
        return self._always is None or storage in self._always

    def _copied(self, storage: int, there: Tensor | HostBuffer) -> HostBuffer:
        if storage not in self._room:
            size = there.size if isinstance(there, HostBuffer) else there.untyped_storage().nbytes()
            self._room[storage] = self.host.block(size).open()
        block = self._room[storage]
        if isinstance(there, HostBuffer):
            block.bytes.copy_(there.bytes)
        else:
            offload(self._device, there, block)
        return block
