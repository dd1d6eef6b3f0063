"""Folders for temporary files that do not outlive their process for long.

A folder is removed when its process is done with it or ends. A process that is killed can't: its folders are
swept when the next one starts. Each holds a file that its process has locked, so only those of processes
that are gone are taken, whichever container they ran in.
"""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from stat import S_ISDIR
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any

_FCNTL: Any = import_module("fcntl") if os.name == "posix" else None
"""The module for locks; None on systems without it, where nothing is swept."""

_LOCK = "in-use"


class Scratch(TemporaryDirectory[str]):
    """A new folder memplan-KIND-… within `within`, by default where temporary files are."""

    def __init__(self, kind: str, within: Path | None = None) -> None:
        """Create a scratch folder. Raises OSError."""
        sweep(within)
        super().__init__(prefix=f"memplan-{kind}-", dir=within, ignore_cleanup_errors=True)
        lock = _locked(Path(self.name))
        # by `cleanup`, or before the folder is removed at the program's end: no file is left open
        self._unlock = weakref.finalize(self, lock.close) if lock else None

    def cleanup(self) -> None:
        """Remove the folder."""
        if self._unlock is not None:
            self._unlock()
        super().cleanup()


def sweep(within: Path | None = None) -> None:
    """Remove the folders there whose processes are gone."""
    if _FCNTL is None:
        return
    with suppress(OSError):
        for lock in Path(within or gettempdir()).glob(f"memplan-*-*/{_LOCK}"):
            with suppress(OSError):
                about = lock.parent.lstat()
                if S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                    # Open for writing: NFS gives an exclusive lock only then.
                    with lock.open("r+b") as file:
                        _lock(file)  # OSError: its process is alive
                        shutil.rmtree(lock.parent, ignore_errors=True)


def _locked(folder: Path) -> IO[bytes] | None:
    """Create the folder's lock file, which is locked from its first moment on."""
    if _FCNTL is None:
        return None
    # A name that sweep does not look for: between creation and lock another process could take it.
    early = folder / f".{_LOCK}"
    file = early.open("wb")
    _lock(file)
    early.rename(folder / _LOCK)
    return file


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed. Raises OSError if another process has it locked."""
    _FCNTL.flock(file, _FCNTL.LOCK_EX | _FCNTL.LOCK_NB)
