"""The rows of a comparison as a CSV file: a line is appended as each trial ends.

A comparison can be killed at any time: rows on file stay, a last line that was half written is dropped. If
two rows have the same key, the later one counts. A table of an earlier version, which lacks the last columns,
can be read but not continued. Columns that had other names earlier are read by these, too.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

from ..graphs.cells import cell_text
from ..graphs.errors import InputError
from ..graphs.files.documents import read_bytes
from .trials import COLUMNS, Improvement, Key, Row

_MOST_BYTES = 512 * 2**20
_HEAD = ",".join(COLUMNS) + "\n"
_EARLIER_NAMES = {
    "plain_time": "baseline_time",
    "plain_peak": "baseline_peak",
    "file_order_bound": "traced_order_bound",
    "file_order_gap_percent": "traced_order_gap_percent",
}
_OLDEST = sum(field.default is MISSING for field in fields(Row))
"""Number of columns that every table has."""


def read_rows(path: Path) -> dict[Key, Row]:
    """Read the rows of a table, none if there is no file.

    Raises InputError if the file is not such a table.
    """
    if not path.exists():
        return {}
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    head = text[: text.find("\n") + 1]
    names = _names(head)
    # A process that was killed at once may have left a part of the head.
    if not (names in _heads() if head else _HEAD.startswith(text)):
        raise InputError(f"{path}: not a table of plan bench: it has other columns")
    # A history may be longer than csv's limit of 131072 characters.
    csv.field_size_limit(max(len(text), csv.field_size_limit()))
    # newline="": csv finds the ends of lines itself, as cells in quotes may have some.
    lines = csv.reader(io.StringIO(_whole_lines(text)[len(head) :], newline=""))
    kinds = _KINDS[: len(names)]
    rows = [_row(path, number, line, kinds) for number, line in enumerate(lines, start=2)]
    return {row.key: row for row in rows}


def append_row(path: Path, row: Row) -> None:
    """Append a row, on the disk when this returns."""
    cells = io.StringIO(newline="")
    csv.writer(cells, lineterminator="\n").writerow(_cell(getattr(row, name)) for name in COLUMNS)
    _append(path, cells.getvalue())


def prepare(path: Path) -> None:
    """Write the head of a new table, or drop a half-written last line of an old one.

    Raises InputError if it can't be written, or is of an earlier version.
    """
    try:
        text = read_bytes(path, _MOST_BYTES) if path.exists() else b""
        # Rows are by position: a whole table goes on under the earlier names of its columns.
        if b"\n" in text and _names(text[: text.find(b"\n")].decode("utf-8", "replace")) != list(COLUMNS):
            raise InputError(
                f"{path}: of an earlier version, with fewer columns: give another file for the rows"
            )
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(path, whole)
        if not whole:
            _append(path, _HEAD)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8", newline="") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _names(head: str) -> list[str]:
    """Return the names of columns, as they are now."""
    return [_EARLIER_NAMES.get(name, name) for name in head.rstrip("\n").split(",")]


def _heads() -> list[list[str]]:
    return [list(COLUMNS[:count]) for count in range(_OLDEST, len(COLUMNS) + 1)]


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        # repr: the same float is read back.
        return " ".join(f"{one.seconds!r}:{one.time!r}" for one in cast("tuple[Improvement, ...]", value))
    return "" if value is None else cell_text(value) if isinstance(value, str) else value


def _found(text: str) -> Improvement:
    seconds, time = text.split(":")
    return Improvement(float(seconds), float(time))


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
    "tuple[Improvement, ...]": lambda text: tuple(map(_found, text.split())),
}
# Types are texts here: trials.py imports annotations from __future__.
_KINDS = [_READERS[str(field.type)] for field in fields(Row)]


def _row(path: Path, number: int, line: list[str], kinds: list[Callable[[str], Any]]) -> Row:
    try:
        return Row(*(read(cell) for read, cell in zip(kinds, line, strict=True)))
    except ValueError:
        raise InputError(f"{path}: line {number} is no row of this table") from None
