"""The storages of a trace, by the identity of the fake tensors' memory, and the values that lie in them."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graphs.graph import Kind
from ...program.names import Names
from ...program.program import Storage, Value
from ...torch_support.torch_tensors import memory_of
from ..absent_gpu.devices import is_absent_gpu
from ..device.choice import device_of


class Allocations:
    """The storages and values that a trace has made so far.

    device: the one whose memory counts.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.storages: list[Storage] = []
        self.values: list[Value] = []
        self._index: dict[int, int] = {}
        self._names = Names()

    def __contains__(self, tensor: Tensor) -> bool:
        """Tell whether the tensor lies in a storage that is known already."""
        return memory_of(tensor) in self._index

    def storage(self, tensor: Tensor, name: str, kind: Kind, layer: str | None) -> int:
        """Add a new storage, that of `tensor`, and return its index."""
        self._index[memory_of(tensor)] = len(self.storages)
        name = self._names.unique(name)
        self.storages.append(Storage(name, size_bytes(tensor, self.device), kind, layer))
        return len(self.storages) - 1

    def value(self, tensor: Tensor) -> int:
        """Add a new value, in its known storage, and return its index."""
        storage = self._index[memory_of(tensor)]
        layout = (tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        self.values.append(Value(storage, *layout, tensor.dtype, tensor.device))
        return len(self.values) - 1

    def rename(self, storage: int, name: str, kind: Kind) -> None:
        self.storages[storage] = self.storages[storage]._replace(name=self._names.unique(name), kind=kind)


def size_bytes(tensor: Tensor, device: torch.device) -> int:
    """Return the bytes of the tensor's whole storage, as the device's allocator counts them; 0 if on
    another device.

    For a GPU that is not here they are exact, since they are interpolated between batches (family.py); its
    graph counts blocks.
    """
    size = tensor.untyped_storage().nbytes()
    if tensor.device != device:
        return 0
    if is_absent_gpu():
        return size
    return device_of(device).rounded(size)
