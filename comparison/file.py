"""The rows of a comparison as a CSV file: a line is appended as each trial ends.

A comparison can be killed at any time: what is on file stays, a last line that was half written is dropped.
Where two rows have the same key, the later one counts.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from ..graphs.errors import InputError
from .trials import COLUMNS, Key, Row

_HEAD = ",".join(COLUMNS) + "\n"


def read_rows(path: Path) -> dict[Key, Row]:
    """Raises InputError where the file is no such table."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if text[: len(_HEAD)] != _HEAD[: len(text)]:
        raise InputError(f"{path}: not a table of plan bench: it has other columns")
    csv.field_size_limit(max(len(text), csv.field_size_limit()))
    lines = csv.reader(io.StringIO(_whole_lines(text)[len(_HEAD) :], newline=""))
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=2)]
    return {row.key: row for row in rows}


def append_row(path: Path, row: Row) -> None:
    """On disk when this returns."""
    cells = io.StringIO(newline="")
    csv.writer(cells, lineterminator="\n").writerow("" if x is None else x for x in astuple(row))
    _append(path, cells.getvalue())


def prepare(path: Path) -> None:
    """Write the head of a new table, or drop a half-written last line of an old one."""
    try:
        text = path.read_bytes() if path.exists() else b""
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


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
}
_KINDS = [_READERS[str(field.type)] for field in fields(Row)]


def _row(path: Path, number: int, line: list[str]) -> Row:
    try:
        return Row(*(read(cell) for read, cell in zip(_KINDS, line, strict=True)))
    except ValueError:
        raise InputError(f"{path}: line {number} is no row of this table") from None
