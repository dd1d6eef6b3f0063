"""Files with recordings of memory: snapshots are pickles, profiles JSON, also with `.gz`; XLA's are text.

PyTorch 2.13 writes snapshots as pickles alone, and so does its main branch of 2026. Nsight Systems exports to
SQLite, with the segments of the allocator at most: not who has which bytes of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...graphs.errors import InputError
from ...graphs.files.documents import read_bytes
from ..pickles import unpickled
from . import profiles, snapshots, xla
from .recording import Recording

EXPECTED = (
    "a snapshot of torch.cuda.memory, a trace of torch.profiler or a buffer assignment of XLA is expected"
)
_RECORD = (
    "torch.cuda.memory._record_memory_history() before, "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') after"
)
_SQLITE, _OF_NSIGHT = b"SQLite format 3\0", (b"CUPTI_ACTIVITY_KIND", b"TARGET_INFO_GPU", b"NSYS")
_MOST_BYTES = 512 * 2**20


def read_recording(path: Path, device: int | None = None) -> Recording:
    """Return a device's recording; by default that of the device with the most memory.

    A pickle is read without executing anything: numbers, texts and containers alone. Raises InputError.
    """
    head = read_bytes(path, _MOST_BYTES) if path.suffix != ".gz" else b""
    if head.startswith(_SQLITE):
        nsight = any(name in head for name in _OF_NSIGHT)
        what = "an export of Nsight Systems, which knows no tensors" if nsight else "an SQLite database"
        raise InputError(f"{path}: is {what}; PyTorch writes its snapshots as pickles: {_RECORD}")
    is_xla = head.startswith((b"BufferAssignment:", b"Total bytes", b"Memory Space:", b"HloLiveRange "))
    is_json = path.name.removesuffix(".gz").endswith(".json") or head.lstrip()[:1] in (b"{", b"[")
    try:
        if is_xla:
            return _of_xla(path, device)
        if is_json:
            return profiles.recording_of(_json(path), device)
        del head
        return snapshots.recording_of(_pickle(path), device)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _of_xla(path: Path, device: int | None) -> Recording:
    """Read a buffer assignment, or the one next to a report, with the files of the same program."""
    if device is not None:
        raise ValueError("--device is for files of several GPUs: a program of XLA is of one")
    name = path.name
    for end in (xla.REPORT, xla.RANGES):
        name = f"{name.removesuffix(end)}{xla.ASSIGNMENT}" if name.endswith(end) else name
    start = name.removesuffix(xla.ASSIGNMENT)
    if name == start and not _text(path).startswith("BufferAssignment:"):
        raise ValueError(f"has rounded sizes; give the file …{xla.ASSIGNMENT}, which XLA writes next to it")
    if not (whole := path.with_name(name)).is_file():
        raise ValueError(f"needs {name} next to it, which XLA writes to the same folder")
    ends = (xla.RANGES, xla.REPORT, ".txt") if name != start else ()
    there = {end: path.with_name(f"{start}{end}") for end in ends}
    others = {end: _text(other) for end, other in there.items() if other.is_file()}
    return xla.recording_of(whole, _text(whole), others)


def _text(path: Path) -> str:
    try:
        return read_bytes(path, _MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8 text (byte {error.start})") from None


def _pickle(path: Path) -> Any:
    try:
        return unpickled(path)
    except ValueError as error:
        raise ValueError(f"{error}; {EXPECTED}") from None


def _json(path: Path) -> Any:
    raw = read_bytes(path, _MOST_BYTES)
    try:
        return json.loads(raw)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
