"""The error of a memory below the device that has less room than a schedule needs."""

from __future__ import annotations

from ...graphs.errors import InputError
from ...graphs.machine import Memory


class ShortageError(InputError):
    """Error: the host, or the disk, has no room for what a schedule keeps there.

    memory: the one that is full.
    available: bytes that a schedule can have there, None if that is not known.
    """

    memory: Memory = Memory.HOST
    available: int | None = None

    @classmethod
    def of(cls, memory: Memory, line: str, available: int | None = None) -> ShortageError:
        error = cls(line)
        error.memory, error.available = memory, available
        return error
