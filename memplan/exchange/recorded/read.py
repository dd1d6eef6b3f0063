"""Files with recordings of memory: snapshots are pickles, profiles are JSON, also with `.gz`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...graphs.errors import InputError
from ...graphs.files.documents import read_bytes
from ..pickles import unpickled
from . import profiles, snapshots
from .recording import Recording

EXPECTED = "a snapshot of torch.cuda.memory or a trace of torch.profiler is expected"
_MOST_BYTES = 512 * 2**20


def read_recording(path: Path, device: int | None = None) -> Recording:
    """Return a device's recording; by default that of the device with the most memory.

    A pickle is read without executing anything: numbers, texts and containers alone. Raises InputError.
    """
    head = read_bytes(path, _MOST_BYTES) if path.suffix != ".gz" else b""
    is_json = path.name.removesuffix(".gz").endswith(".json") or head.lstrip()[:1] in (b"{", b"[")
    try:
        if is_json:
            return profiles.recording_of(_json(path), device)
        del head
        return snapshots.recording_of(_pickle(path), device)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


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
