"""The values of offloaded tensors, read and written in the memory that holds them: without room on the
device.

A tensor whose storage is on the host is read there, one on the disk from its file as it is accessed. Nothing
of it is copied; a save of all of a model takes no memory in addition to the file's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...graphs.errors import MemplanError
from ...program.program import Value
from ...torch_support.torch_tensors import version_of
from .copies import loaded, value
from .disk import File
from .host_buffers import HostBuffer
from .lazy_init import filled_with, refill
from .offloaded import hold_of, readers


def at_home_value(tensor: Tensor) -> Tensor:
    """Return the tensor's values where they are: itself, detached, or the offloaded values in host memory.

    Of a tensor in blocks of rows they are a copy of all blocks. They may be read, and not after the next
    iteration. Raises MemplanError if they are lost or the disk can't be read.
    """
    hold = hold_of(tensor)
    if hold is None:
        return tensor.detach()
    if hold.blocks is None:
        return _read(hold.copies(), hold.form)
    return torch.cat([_read(block.copies, block.form).cpu() for block in hold.blocks()])


def replace_at_home(tensor: Tensor, values: Tensor) -> None:
    """Replace the tensor's values, in the same form, in all memories that hold it; a lost one has them on
    the device.

    Raises MemplanError.
    """
    if (hold := hold_of(tensor)) is not None:
        with suppress(MemplanError):  # only now it may turn out to be lost
            hold.copies()
        hold = hold_of(tensor)
    if hold is None or hold.lost:
        with torch.no_grad():
            tensor.copy_(values)
        return
    if hold.fill is not None:
        refill(tensor, partial(filled_with, values, hold.form))
        return
    if hold.blocks is not None:
        for block in hold.blocks():
            _replace(block.copies, block.form, values[block.rows])
        return
    _replace(hold.copies(), hold.form, values)


def _replace(copies: Sequence[Any], form: Value, values: Tensor) -> None:
    for copy in copies:
        if isinstance(copy, File):
            # The whole storage: the tensor may be a part of it.
            bytes_ = loaded(copy)
            value(bytes_, form).copy_(values)
            copy.write(bytes_[: copy.size])
        else:
            _view(copy, form).copy_(values)


@contextmanager
def at_home() -> Generator[None]:
    """Let `state_dict()`, `detach()`, `cpu()` and pickles of offloaded tensors have their values on the
    CPU, where they are.

    What is written into these reaches the tensors when the block ends; they hold only in the block. All else
    that asks for values has them brought back to the device, as usual.
    """
    given: list[tuple[Tensor, Tensor, int]] = []

    def read(tensor: Tensor) -> Tensor:
        made = at_home_value(tensor)
        given.append((tensor, made, version_of(made)))
        return made

    readers.append(read)
    try:
        yield
    finally:
        readers.pop()
    for tensor, made, version in given:
        if version_of(made) != version:  # each write in place adds to it
            replace_at_home(tensor, made)


def _read(copies: Sequence[Any], form: Value) -> Tensor:
    copy = min(copies, key=_order)
    if isinstance(copy, File):
        return value(_mapped(copy), form)
    return _view(copy, form)


def _view(copy: Tensor | HostBuffer, form: Value) -> Tensor:
    return value(copy.bytes if isinstance(copy, HostBuffer) else copy, form)


def _mapped(file: File) -> Tensor:
    try:
        return file.mapped()
    except RuntimeError as error:
        raise MemplanError(f"what was offloaded to the disk can't be read: {error}") from error


def _order(copy: Any) -> int:
    return (HostBuffer, File, Tensor).index(type(copy))  # the device's last
