"""Python's audit events for those that listen: files that are opened, programs that start, sockets.

Python has no function that removes an audit hook. So the process has one, which does nothing while nobody
listens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

Listener = Callable[[str, tuple[Any, ...]], None]

_listeners: list[Listener] = []


@contextmanager
def audited(listener: Listener) -> Generator[None]:
    """Call the listener with the name and the arguments of each event within.

    What it raises is raised where the event is. The frame that caused the event is `sys._getframe(2)` to it.
    """
    _install()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for listener in _listeners[::-1]:  # the innermost first: what it raises is its own
        listener(event, arguments)
