"""Checksums at the speed of memory, for bytes that come back from a disk."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_ROW = 4096


def checksum(data: NDArray[np.uint8]) -> int:
    """Compute a checksum of 32 bits."""
    found = 0
    for part in _sums(data):
        found = crc32(part, found)
    return found


class Digest:
    """A digest of 128 bits of data that is given part by part; the split is part of it.

    It finds damage and mistakes. It is not a protection from somebody who looks for other data with the same
    digest.
    """

    def __init__(self) -> None:
        self._state = blake2b(digest_size=16)

    def update(self, data: NDArray[np.uint8]) -> None:
        self._state.update(len(data).to_bytes(8, "little"))
        for part in _sums(data):
            self._state.update(part)

    def hex(self) -> str:
        return self._state.hexdigest()


def _sums(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the bytes of which checksums are made, a hundredth of the data.

    They are: the rest of the data after its rows of 4 KiB, as it is; the sum of each row's words; the sum of
    each column's, in order. Both sums together detect a row that is old, zero or another's, and bytes that
    are shifted or swapped.
    """
    rows = len(data) // _ROW
    yield data[rows * _ROW :].tobytes()
    if rows:
        words = data[: rows * _ROW].view(np.uint64).reshape(rows, -1)
        for axis in (1, 0):
            yield np.add.reduce(words, axis=axis).tobytes()  # modulo 2**64: no overflow is an error
