"""A Python process that may crash or hang without harm to this program, and does not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from time import sleep

LAST_SECONDS = 5.0
"""Seconds that work may take to give its best so far after it was asked to stop; then its process is ended.

HiGHS in presolve and a compiled search look up a few times a second, on a busy machine once in a second or
two.
"""

KEEP_SECONDS = 30.0
"""Seconds that it may take in all if it alone holds the best schedule so far.

That is not given up because the machine is busy.
"""

WATCH_SECONDS = 0.2
"""Seconds between a worker's checks that the program still exists."""

COMPLAINTS = "complaints"
"""The file in a process's folder with what it wrote to standard error."""

_FLAGS = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}

_BEGIN = (
    "import sys; sys.path[:] = eval(sys.argv.pop(1)); from memplan.solvers.workers.serve import main; main()"
)
"""The first statements of a worker, which set its path. Before them Python imports what it starts with, from
where it looks then. So PYTHONPATH stays what it is: with the folder of a script in it, a file enum.py there
would come before Python's own, which the script has loaded before its folder was added."""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a worker (serve.py) with pipes for its standard input and output.

    It ends, with all that it started, soon after this process is gone, however that ended, and finds modules
    on `search_path`.

    folder: its current folder, where its standard error and its temporary files go.
    arguments: as `serve.main` takes them, after this process's number.
    """
    with (folder / COMPLAINTS).open("wb") as complaints:
        return subprocess.Popen(
            [*_python(), "-c", _BEGIN, ascii(search_path()), str(os.getpid()), *arguments],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # Ctrl-C reaches this process alone, and `kill` the worker's whole group
        )


def _python() -> list[str]:
    """Return this interpreter, with its options that decide where modules come from."""
    flags = (flag for name, flag in _FLAGS.items() if getattr(sys.flags, name))
    return [sys.executable, "-W", "ignore", *flags]


def search_path() -> list[str]:
    """Return the folders in which a worker looks for modules: those of this process, Python's own first.

    "" is left out, the current folder. A worker needs nothing of the user's: a file with the name of one of
    Python's modules would break it, though this process may have loaded Python's.
    """
    standard = os.path.dirname(os.__file__)
    own = (standard, os.path.join(standard, "lib-dynload"))
    return sorted((os.path.abspath(path) for path in sys.path if path), key=lambda path: path not in own)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that `start` started, with all that it started in its session."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # nobody is left, or nobody alive
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def last_words(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Return the last line that a crashed process wrote to standard error, or its exit status."""
    lines = (folder / COMPLAINTS).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"


@cache
def end_with(parent: int) -> None:
    """End this process, with its group if it leads one, once it is no longer a child of `parent`."""
    if os.name == "posix":
        Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        sleep(WATCH_SECONDS)
    end_group()


def end_group() -> None:
    """End this process at once, with its group if it leads one: without the interpreter's end, which would
    wait for threads."""
    if os.name == "posix":
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)
