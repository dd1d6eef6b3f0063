"""Tensors in a file, in the format of safetensors: other tools read it, and it reads theirs.

Eight bytes with the length of the header, the header as JSON, then the bytes of the tensors, row by row.
Written tensor by tensor from where each lies; read as it is looked at, without memory of its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..graphs.errors import InputError
from ..runtime.storage.home import at_home_value

_PIECE = 64 << 20
"""Bytes that are copied from a device at a time."""

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_WIDEST = 8
"""Bytes. The widest come first, so that each begins at a multiple of its own."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A new file, on the disk when this returns; of tensors that are away the values where they lie. Host
    memory: at most that of one tensor. Raises InputError for one that the format has no room for, OSError."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
            raise InputError(f"{name} can't be saved: {tensor.dtype}, {tensor.layout}")
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.element_size() * prod(tensor.shape)
        row = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = row
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _WIDEST)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for piece in _pieces(at_home_value(tensors[name])):
                _write(file, piece)
        sync(file)


def open_tensors(path: Path) -> dict[str, Tensor]:
    """By name. Raises InputError, one line, where it is no such file or not whole."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < size else None
        if not isinstance(header, dict):
            raise ValueError("no header")
        everything = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        rows = {name: row for name, row in header.items() if name != "__metadata__"}
        return {name: _tensor(everything[8 + length :], row) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path}: can't be read as tensors: {' '.join(str(error).split())}") from error


def sync(file: BinaryIO) -> None:
    """What was written is on the disk, also if the machine stops now."""
    file.flush()
    os.fsync(file.fileno())


def _tensor(bytes_: Tensor, row: Mapping[str, Any]) -> Tensor:
    (begin, end), dtype, shape = row["data_offsets"], _TYPES[row["dtype"]], tuple(row["shape"])
    if not 0 <= begin <= end <= len(bytes_) or end - begin != prod(shape) * dtype.itemsize:
        raise ValueError("a tensor lies beyond the end")
    part = bytes_[begin:end]
    if part.data_ptr() % dtype.itemsize:  # others may write so
        part = part.clone()
    return part.view(dtype).view(shape)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Its bytes row by row, on the host."""
    if tensor.device.type != "cpu" and not tensor.is_contiguous():
        there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        tensor = there.copy_(tensor)
    if tensor.numel():
        bytes_ = tensor.contiguous().view(-1).view(torch.uint8)
        for piece in bytes_.split(_PIECE):
            yield piece.cpu()


def _write(file: BinaryIO, piece: Tensor) -> None:
    left = memoryview(piece.numpy())  # pyright: ignore[reportArgumentType]
    while len(left):
        left = left[file.write(left) :]
