"""Out of memory: how it is known, and how planning says it.

Planning runs each operation of an iteration by itself, to learn its layouts, its time and its memory. So it
needs no memory for the iteration, but weights, batch and what its largest operation reads and writes have to
be there together.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import torch

from ..graphs.errors import MemplanError, OutOfMemoryError

WAYS = "give a smaller batch or shorter inputs, or free what else is in that memory"
"""Advice: no plan takes less than its largest operation."""

_OF_THE_CPU = re.compile("(can't|cannot) allocate memory|not enough memory: you tried", re.IGNORECASE)
"""What a RuntimeError of the CPU's allocator says. Other errors name allocation too, such as that of a tensor
without data."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memplan, torch or Python found no memory, on the CPU or on a GPU."""
    if isinstance(error, OutOfMemoryError | MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, MemplanError):  # its line may quote another rank's
        return False
    return _OF_THE_CPU.search(str(error)) is not None


@contextmanager
def planning(what: str) -> Generator[None]:
    """Raise OutOfMemoryError if the block runs out of memory. what: what then can't allocate memory."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise without_memory(what, error) from error


def without_memory(what: str, error: BaseException) -> OutOfMemoryError:
    """Return the error to raise instead of `error`. what: what can't allocate memory."""
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return OutOfMemoryError(f"out of memory: {what} can't allocate memory: {WAYS} ({said})")
