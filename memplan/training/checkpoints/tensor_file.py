"""Tensors in a file, in the format of safetensors: other tools read it, and it reads theirs.

Eight bytes with the length of the header, the header as JSON, then the bytes of the tensors in row-major
order. Tensors are written one by one from the memory that holds them. Reading maps the file: pages are loaded
on access. Writing returns digests of the header and of each tensor, which `verify_tensors` compares with the
file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...devices.storage.checksum import Digest
from ...devices.storage.host_access import at_home_value
from ...graphs.errors import InputError
from ...graphs.files.documents import regular_size

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
HEADER = "__metadata__"
"""Key of the header's digest, and of the metadata within the header: not a tensor's name."""

OTHER = (
    "differs from what was saved, or is of another save: the checkpoint is damaged; "
    "put the file back from a copy of the folder"
)
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError)
_WIDEST = 8
"""Bytes of the widest element.

Tensors with the widest come first, so that each is aligned to its elements.
"""


def in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in the order in which they are written: those with the widest elements first."""
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: -tensors[name].element_size())}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], read: Callable[[Tensor], Tensor] = at_home_value
) -> dict[str, str]:
    """Write tensors to a new file, on the disk when this returns, and return their digests.

    read: returns a tensor's values, of which one tensor's are needed at a time. By default offloaded tensors
        are read in the memory that holds them. It takes at most the host memory of one tensor.
    Returns digests by tensor, and that of the header as `HEADER`. Raises InputError for a tensor that the
    format can't hold, and OSError.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
            raise InputError(f"{name} can't be saved: {tensor.dtype}, {tensor.layout}")
    header: dict[str, Any] = {HEADER: {"format": "pt"}}
    end = 0
    for name, tensor in in_order(tensors).items():
        begin, end = end, end + tensor.element_size() * prod(tensor.shape)
        row = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = row
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _WIDEST)  # so that the first tensor's bytes are aligned
    digests = {HEADER: _digest([np.frombuffer(text, np.uint8)])}
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in in_order(tensors).items():
            digests[name] = _digest(_written(file, _pieces(read(tensor))))
        sync(file)
    return digests


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Raises InputError, one line, if it is not such a file or not complete.
    """
    size = regular_size(path)
    try:
        header, begin = _header(path, size)
        _check_places([row["data_offsets"] for row in header.values()], size - begin)
        everything = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        return {name: _tensor(everything[begin:], row) for name, row in header.items()}
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def verify_tensors(path: Path, digests: Mapping[str, str], part: tuple[int, int] = (0, 1)) -> None:
    """Compare the bytes of a file that `open_tensors` has read with the digests of `write_tensors`.

    part: (i, n) compares the i-th, (i + n)-th, … tensors alone.
    Raises InputError, one line, if one differs.
    """
    try:
        with path.open("rb") as file:  # not as mapped memory: there a bad sector ends the process
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length)
            if _digest([np.frombuffer(text, np.uint8)]) != digests[HEADER]:
                raise InputError(f"{path}: its header {OTHER}")
            # From here on the header is what was written: it has these names, and places that are in order.
            places = {name: row["data_offsets"] for name, row in json.loads(text).items() if name != HEADER}
            for name, (begin, end) in sorted(places.items(), key=lambda item: item[1])[part[0] :: part[1]]:
                file.seek(8 + length + begin)
                if _digest(_read(file, end - begin)) != digests[name]:
                    raise InputError(f"{path}: {name} {OTHER}")
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def file_digest(path: Path) -> str:
    """Return the size and digest of a whole file. Raises InputError, OSError."""
    size = regular_size(path)
    with path.open("rb") as file:
        return f"{size} {_digest(_read(file, size))}"


def has_file_digest(path: Path, digest: str) -> bool:
    """Tell whether the file has this digest; one of another size is not read. Raises InputError, OSError."""
    return digest.startswith(f"{regular_size(path)} ") and digest == file_digest(path)


def sync(file: BinaryIO) -> None:
    """Flush the file to the disk, so that its content survives a crash of the machine."""
    file.flush()
    os.fsync(file.fileno())


def _header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header's rows by tensor, and the offset at which the tensors' bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length)) if length < size else None
    if not isinstance(header, dict):
        raise ValueError("no header")
    return {name: row for name, row in header.items() if name != HEADER}, 8 + length


def _check_places(places: Sequence[Sequence[int]], size: int) -> None:
    """Check that each byte belongs to one tensor, as the format requires."""
    end = 0
    for begin, after in sorted(map(tuple, places)):
        if begin != end or after < begin:
            raise ValueError("tensors overlap, or there is a gap between them")
        end = after
    if end != size:
        raise ValueError(f"its tensors end at byte {end} of {size}")


def _tensor(bytes_: Tensor, row: Mapping[str, Any]) -> Tensor:
    (begin, end), dtype, shape = row["data_offsets"], _TYPES[row["dtype"]], tuple(row["shape"])
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{list(shape)} is not a shape")
    if end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"{end - begin} bytes for the shape {list(shape)} of {row['dtype']}")
    part = bytes_[begin:end]
    if part.data_ptr() % dtype.itemsize:  # others may write so
        part = part.clone()
    return part.view(dtype).view(shape)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: can't be read as tensors: {' '.join(str(error).split())[:300]}")


def _digest(pieces: Iterable[NDArray[np.uint8]]) -> str:
    digest = Digest()
    for piece in pieces:
        digest.update(piece)
    return digest.hex()


def _read(file: BinaryIO, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the next bytes, in the blocks in which they were written, each in the same buffer."""
    buffer = np.empty(min(size, _PIECE), np.uint8)
    while size:
        piece = buffer[: min(size, _PIECE)]
        if file.readinto(piece.data) != len(piece):  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError("it ends early")
        yield piece
        size -= len(piece)


def _written(file: BinaryIO, pieces: Iterable[Tensor]) -> Iterator[NDArray[np.uint8]]:
    """Write blocks to the file and yield each once it is written."""
    for piece in pieces:
        data = piece.numpy()
        left = memoryview(data)  # pyright: ignore[reportArgumentType]
        while len(left):
            left = left[file.write(left) :]
        yield data


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the bytes of a tensor in row-major order, in blocks on the host."""
    if tensor.device.type != "cpu" and not tensor.is_contiguous():
        there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        tensor = there.copy_(tensor)
    if tensor.numel():
        bytes_ = tensor.contiguous().view(-1).view(torch.uint8)
        for piece in bytes_.split(_PIECE):
            yield piece.cpu()
