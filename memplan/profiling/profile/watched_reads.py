"""Files that code opens and environment variables that it reads while it is watched.

Python's `os.environ` is watched, in whatever way a variable is read: `os.getenv`, `in`, `get`. Code that goes
through all variables, or starts another program, which gets them all, counts as a reader of each. What
extensions in C read by themselves is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...torch_support.audit import audited

_SYSTEM = ("/proc/", "/sys/", "/dev/")
_PROGRAMS = frozenset(
    ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
)
"""Audit events of a program that starts."""


@dataclass
class Reads:
    """Files and environment variables that were read. every_variable: all of these may have been."""

    files: set[str] = field(default_factory=set[str])
    variables: set[str] = field(default_factory=set[str])
    every_variable: bool = False

    def add(self, other: Reads) -> None:
        self.files |= other.files
        self.variables |= other.variables
        self.every_variable |= other.every_variable


@contextmanager
def watched() -> Generator[Reads]:
    """Note what is read in the block."""
    reads = Reads()
    with audited(partial(_note, reads)), _environment_watched(reads):
        yield reads


@contextmanager
def _environment_watched(reads: Reads) -> Generator[None]:
    """Note the environment variables that are read in the block, wherever `os.environ` is held."""
    kind: Any = type(os.environ)
    # `get`, `getenv` and `in` all end in __getitem__.
    own_get, own_iter = kind.__getitem__, kind.__iter__

    def get(environment: Any, name: Any) -> Any:
        if isinstance(name, str | bytes):
            reads.variables.add(os.fsdecode(name))
        return own_get(environment, name)

    def iterate(environment: Any) -> Iterator[Any]:
        reads.every_variable = True
        return own_iter(environment)

    kind.__getitem__, kind.__iter__ = get, iterate
    try:
        yield
    finally:
        kind.__getitem__, kind.__iter__ = own_get, own_iter


def _note(reads: Reads, event: str, arguments: tuple[Any, ...]) -> None:
    if event in _PROGRAMS:
        reads.every_variable = True
    elif event == "open":
        path, mode, flags = arguments  # os.open has flags and no mode
        writes = set(mode) & set("wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
        read = isinstance(path, str) and not path.startswith(_SYSTEM) and not path.endswith(".pyc")
        if read and not writes:
            reads.files.add(path)
