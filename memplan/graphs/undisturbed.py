"""Surroundings in which imports and compilers work, whatever a script has made of its own.

Scripts replace `print` (so that one rank alone prints), `open` and other builtins, turn warnings into errors,
and remove the folder that they work in. Libraries that memplan imports when it first needs them look up
builtins by module and name (numba), warn of each other, and ask for the working folder (torch). A trace
needs more calls within each other than the model does, which a script's recursion limit may be too low for.
"""

# pyright: reportMissingModuleSource=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import _imp
import _io
import builtins
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.machinery import BuiltinImporter
from threading import Lock, Thread
from typing import Any, cast

_CALLS = 1000
"""Calls within each other that planning may need beyond those that the script allows: Python's own limit."""


class _Shared:
    """A context of the whole process, which blocks of several threads share: it ends with the last one."""

    def __init__(self, surroundings: Callable[[], AbstractContextManager[None]]) -> None:
        self._surroundings = surroundings
        self._lock, self._users, self._around = Lock(), 0, ExitStack()

    @contextmanager
    def block(self) -> Generator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._around.enter_context(self._surroundings())
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._around.close()


@contextmanager
def _for_imports() -> Generator[None]:
    with deep_calls(), _own_builtins(), warnings.catch_warnings(), _existing_folder():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module="memplan$")  # its own are for the user
        yield


@contextmanager
def _for_calls() -> Generator[None]:
    limit = sys.getrecursionlimit()
    more = min(limit + _CALLS, 2**31 - 1)  # a C int
    sys.setrecursionlimit(more)
    hooks: list[tuple[Any, Any, Any]] = [
        (sys, sys.excepthook, sys.__excepthook__),
        (threading, threading.excepthook, threading.__excepthook__),
    ]
    for module, hook, own in hooks:
        module.excepthook = hook or own  # without them no thread can be made
    try:
        yield
    finally:
        if sys.getrecursionlimit() == more:  # else the script's code has set it meanwhile
            with suppress(RecursionError):  # the last block may end deeper than the first one began
                sys.setrecursionlimit(limit)
        for module, hook, own in hooks:
            if not hook and module.excepthook is own:
                module.excepthook = hook


_imports, _calls = _Shared(_for_imports), _Shared(_for_calls)


@contextmanager
def undisturbed() -> Generator[None]:
    """Put the interpreter's own builtins in place, ignore warnings, allow deep calls, and have a working
    folder that exists, until the block ends.

    Blocks may overlap, in other threads too: the script's surroundings come back when the last one has ended.
    """
    with _imports.block():
        yield


@contextmanager
def deep_calls() -> Generator[None]:
    """Allow more calls within each other, and threads, until the block ends. The script's code may run in it.

    Blocks may overlap, as those of `undisturbed`.
    """
    with _calls.block():
        yield


def start_thread(work: Callable[..., object], *arguments: object, name: str, daemon: bool = True) -> Thread:
    """Start a thread and return it, whatever hooks of exceptions the script has."""
    with deep_calls():
        thread = Thread(target=work, args=arguments, name=name, daemon=daemon)
    thread.start()
    return thread


@contextmanager
def _own_builtins() -> Generator[None]:
    """Put back the builtins that the interpreter began with; other names stay."""
    now = dict(vars(builtins))
    # The interpreter keeps a copy of them, and writes it back when the module is created once more. So a
    # script may have replaced them before memplan was imported.
    cast("Any", _imp).create_builtin(BuiltinImporter.find_spec("builtins"))
    builtins.open = _io.open  # the copy is made before there is `open`
    replaced = {name: each for name, each in now.items() if vars(builtins).get(name) is not each}
    try:
        yield
    finally:
        builtins.__dict__.update(replaced)


@contextmanager
def _existing_folder() -> Generator[None]:
    """Leave the working folder for the root if it has been removed."""
    gone = None
    try:
        os.getcwd()
    except OSError:
        with suppress(OSError):
            gone = os.open(".", os.O_RDONLY)
            os.chdir("/")
    try:
        yield
    finally:
        if gone is not None:
            with suppress(OSError):
                os.fchdir(gone)
            os.close(gone)
