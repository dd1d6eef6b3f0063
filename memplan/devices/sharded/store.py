"""The store over which ranks have met: rank 0's process has it, or that of torchrun.

PyTorch's client of a store whose process has ended writes some 20 lines of C++ frames at each call. So a
connection of our own, over which nothing is sent, tells first: it is at its end then.
"""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress

from torch import distributed as dist

from ...torch_support.torch_processes import default_store

_CONNECT = 5.0
"""Seconds for the connection."""


LOST = (
    "rank 0, or torchrun's process that has the store of the ranks, has ended: killed, out of memory, or by "
    "an error that its own output shows"
)


class StoreLostError(RuntimeError):
    """Error of a call of a store whose process has ended."""

    def __init__(self) -> None:
        super().__init__(LOST)


class SharedStore:
    """The default group's store under a prefix. Its methods raise RuntimeError if its process has ended."""

    def __init__(self, prefix: str) -> None:
        default = default_store()
        self._store = dist.PrefixStore(prefix, default)
        self._process = _Process(default)

    def set(self, key: str, value: str) -> None:
        self._process.check()
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._process.check()
        return self._store.get(key)

    def has(self, key: str) -> bool:
        """Tell whether the key has been set."""
        self._process.check()
        return self._store.check([key])


class _Process:
    """The process that has a store, as far as a connection to it tells."""

    def __init__(self, store: dist.Store) -> None:
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        self._connection, self._refused = None, False
        if not isinstance(store, dist.TCPStore):  # a file, or in this process
            return
        try:
            self._connection = socket.create_connection((store.host, store.port), _CONNECT)
        except ConnectionRefusedError:  # PyTorch's own was accepted before
            self._refused = True
        except OSError:
            return
        else:
            self._connection.setblocking(False)
            weakref.finalize(self, self._connection.close)

    def check(self) -> None:
        """Raise StoreLostError if the process has ended."""
        if self._refused or (self._connection is not None and _is_at_end(self._connection)):
            raise StoreLostError


def _is_at_end(connection: socket.socket) -> bool:
    """Tell whether the other process has closed a connection over which nothing is sent."""
    with suppress(BlockingIOError):
        try:
            return not connection.recv(1)
        except ConnectionError:
            return True
    return False
