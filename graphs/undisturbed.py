"""Surroundings in which imports and compilers work, whatever a script has made of its own.

Scripts replace `print` (so that one rank alone prints), `open` and other builtins, turn warnings into errors,
and remove the folder that they work in. Libraries that memplan imports when it first needs them look up
builtins by module and name (numba), warn of each other, and ask for the working folder (torch).
"""

# pyright: reportMissingModuleSource=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import _imp
import builtins
import os
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from importlib.machinery import BuiltinImporter
from threading import Lock
from typing import Any, cast

_lock = Lock()
_users = 0
_around = ExitStack()


@contextmanager
def undisturbed() -> Generator[None]:
    """Put the interpreter's own builtins in place, ignore warnings, and have a working folder that exists,
    until the block ends.

    Blocks may overlap, in other threads too: the script's surroundings come back when the last one has ended.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _around.enter_context(_own_builtins())
            _around.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            warnings.filterwarnings("always", module="memplan$")  # its own are for the user
            _around.enter_context(_existing_folder())


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _around.close()


@contextmanager
def _own_builtins() -> Generator[None]:
    """Put back the builtins that the interpreter began with; other names stay."""
    now = dict(vars(builtins))
    # The interpreter keeps a copy of them, and writes it back when the module is created once more. So a
    # script may have replaced them before memplan was imported.
    cast("Any", _imp).create_builtin(BuiltinImporter.find_spec("builtins"))
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
