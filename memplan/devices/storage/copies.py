"""Copies of storages, byte by byte, and the values that lie in one.

A copy is the whole storage, so every view of it is restored with it: same dtype, shape, strides, offset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...graphs.errors import MemplanError
from ...program.program import Value
from ..device.device import Device
from .disk import File
from .host_buffers import HostBuffer


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of the tensor's whole storage, not copied."""
    # Not as a view: the tensor may have any strides, and be a part of its storage.
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))  # pyright: ignore[reportArgumentType]


def own_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor, not copied: of its storage only those in which it lies."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    return raw(tensor)[start : start + tensor.nbytes]


def value(bytes_: Tensor, form: Value) -> Tensor:
    """Return the value that lies in these bytes, not copied. Raises MemplanError if they are too few."""
    if bytes_.nbytes < form.end:  # else PyTorch would add bytes of no content
        raise MemplanError(f"a value that needs {form.end:,} bytes has come back with {bytes_.nbytes:,}")
    empty = torch.empty(0, dtype=form.dtype, device=bytes_.device)
    storage = bytes_.untyped_storage()
    return empty.set_(storage, form.offset, form.shape, form.strides)  # pyright: ignore[reportArgumentType]


def offload(device: Device, source: Tensor | None, block: HostBuffer) -> None:
    """Copy from device to host.

    source: None for a result that nobody reads, which has no value to copy.
    """
    block.open()
    if source is not None:
        copy_common(device, raw(source), block.bytes)


def prefetch(device: Device, block: HostBuffer, target: Tensor) -> None:
    """Copy from host to device."""
    copy_common(device, block.bytes, target)


def write(block: HostBuffer, file: File) -> None:
    """Copy from host to disk."""
    file.write(block.bytes)


def read(file: File, block: HostBuffer) -> None:
    """Copy from disk to host."""
    block.open()
    file.read(block.bytes)


def loaded(file: File) -> Tensor:
    """Return the bytes of a file, in separate memory."""
    made = torch.empty(file.size, dtype=torch.uint8, device="cpu")
    file.read(made)
    return made


def copy_common(device: Device, source: Tensor, target: Tensor) -> None:
    """Copy as many bytes as both have.

    Both have room for the storage's values; what one has more is rounding.
    """
    size = min(source.nbytes, target.nbytes)
    device.copy(source[:size], target[:size])
