"""Reads of the user's code outside of Python, while it is traced: files, processes, the network.

Python's audit events tell of it, whichever function was called. Files that are read are refused; of the rest,
and of objects whose state no one can see, a warning says that a plan does not notice their changes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, FunctionType, MethodType
from typing import Any

from ...torch_support.audit import audited
from ...torch_support.raw import bases_of, is_a, module_of
from ...torch_support.reach import is_of_library
from ...torch_support.unsupported import TraceError, at_line
from .contents import content, is_itself
from .forbidden import reading

_OURS = __name__.partition(".")[0]
_READS_FILES = ("numpy", "pandas", "yaml")
"""Libraries that read what the user's code names."""
_SAID = {
    "subprocess.": "starts another process",
    "os.system": "starts another process",
    "os.exec": "starts another process",
    "os.fork": "starts another process",
    "os.posix_spawn": "starts another process",
    "os.spawn": "starts another process",
    "os.getxattr": "looks at files",
    "os.listxattr": "looks at files",
    "socket.": "uses the network",
    "urllib.": "uses the network",
    "sqlite3.connect": "opens a database",
    "ctypes.": "calls native code",
    "mmap.": "maps memory",
    "winreg.": "reads the registry",
}
"""Meanings of audit events, by how these begin."""


@contextmanager
def outside_watched(listens: Callable[[], bool], unwatched: list[str]) -> Generator[None]:
    """Raise TraceError if the user's code reads a file, and note in `unwatched` what else it asks outside."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        said = "" if event == "open" else next((_SAID[each] for each in _SAID if event.startswith(each)), "")
        if not (said or event == "open"):
            return
        if not listens() or (place := _users_line(sys._getframe(2))) is None:
            return
        if said:
            unwatched.append(f"{place}{said}: what it answers")
        elif _reads(*arguments):
            raise TraceError(reading(f"reads the file {os.path.basename(os.fsdecode(arguments[0]))}", place))

    with audited(note):
        yield


def _reads(path: Any, mode: Any, flags: Any) -> bool:
    """Tell whether a file that was there is opened to read it, by `open` or, without a mode, by `os.open`."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    if isinstance(mode, str):
        return "r" in mode and "+" not in mode
    writes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_DIRECTORY", 0)
    return mode is None and isinstance(flags, int) and not flags & writes


def _users_line(frame: FrameType | None) -> str | None:
    """Return the user's line, None if Python or a library asks for itself."""
    while frame is not None:
        name, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        # Imports read code, tracebacks read lines: neither is an input of the iteration.
        if file.startswith("<frozen importlib") or name in ("linecache", "inspect", "tokenize"):
            return None
        top = name.partition(".")[0]
        # These read for others: the line that called them is the one that reads.
        reads = top in sys.stdlib_module_names or top in _READS_FILES or name == "torch.serialization"
        if not reads and frame.f_globals.get("__package__") != __package__:
            return None if is_of_library(file) or top == _OURS else at_line(file, frame.f_lineno)
        frame = frame.f_back
    return None


_DESCRIPTORS = ("posix", "nt")
_ANSWER_OTHERS = frozenset({"_thread", "_ctypes", "torch"})
"""Modules of objects without a state to see, that are no source: locks; the others have their own rules."""


def unseen(function: Any, receiver: Any, arguments: tuple[Any, ...], result: Any) -> str | None:
    """Return in words what a call has asked, if no later iteration can see whether its answer changes."""
    if result is None or is_a(function, (FunctionType, MethodType)):
        return None  # what Python code asks in turn comes here by itself, or an audit event tells of it
    native = any(module_of(base) == "_ctypes" for base in bases_of(type(function)))
    if native:
        return "what native code answers"
    name = str(getattr(function, "__name__", ""))
    if getattr(function, "__module__", None) in _DESCRIPTORS and arguments and type(arguments[0]) is int:
        return f"what {name}() reads of a descriptor"
    if receiver is None or module_of(type(receiver)).partition(".")[0] in _ANSWER_OTHERS:
        return None
    opaque = is_itself(content(receiver), receiver)
    return f"what {name}() of a {type(receiver).__name__} answers" if opaque else None
