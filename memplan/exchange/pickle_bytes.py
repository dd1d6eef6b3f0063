"""A test whether a pickle holds only basic values: numbers, texts, lists and dicts.

Reading such a pickle costs no more than its bytes, so Python's fast reader may have it. Other pickles can
make that reader hang: a key of nested tuples, each named twice, is hashed along all paths through it. Or they
fill the memory: it allocates as large a memo as the file names. The test is linear in the bytes.
"""

from __future__ import annotations

import pickletools

import numpy as np
from numpy.typing import NDArray

from ..graphs.compiled import compiled

NAMES = {
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
}
OTHER, TEXT = -128, -16
"""Values in `KINDS`: OTHER: not a basic opcode; TEXT + n: one with an n-byte length before its data."""
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_LONG_BINPUT = ord("r")


def is_plain(data: bytes) -> bool:
    return bool(_is_plain(np.frombuffer(data, np.uint8), KINDS))


def _kinds() -> NDArray[np.int64]:
    """Return, per opcode, the bytes of its argument, or a value made of OTHER and TEXT."""
    kinds = np.full(256, OTHER, np.int64)
    for opcode in pickletools.opcodes:
        if opcode.name in NAMES:
            # A negative size says that a length stands before the data.
            size = opcode.arg.n if opcode.arg else 0
            kinds[ord(opcode.code)] = size if size >= 0 else TEXT + _LENGTHS[size]
    return kinds


KINDS = _kinds()


@compiled
def _is_plain(data: NDArray[np.uint8], kinds: NDArray[np.int64]) -> bool:
    place, end = 0, len(data)
    while place < end:
        opcode = data[place]
        place += 1
        if opcode == 46:  # STOP
            return True
        kind = kinds[opcode]
        if kind == OTHER:
            return False
        length = kind if kind >= 0 else kind - TEXT
        if place + length > end:
            return False
        # A memo index of four bytes is checked below like a length.
        if kind >= 0 and opcode != _LONG_BINPUT:
            place += length
            continue
        number = 0
        # Little-endian, as all of pickle's lengths.
        for k in range(length - 1, -1, -1):
            if number >= 2**48:  # before the product overflows; no file is that long
                return False
            number = number * 256 + data[place + k]
        if number > end:  # a length past the end, or a memo index that makes the reader allocate
            return False
        place += length
        if kind < 0:
            place += number
    return False
