"""A Python process of our own, which may crash or hang without taking us with it, and does not outlive us."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import sleep

Child = subprocess.Popen[bytes]

LAST_SECONDS = 5.0
"""How long work that was asked to stop may take to give its best so far; then its process is ended. HiGHS in
presolve and a compiled search look up a few times a second, on a busy machine once in a second or two."""

KEEP_SECONDS = 30.0
"""How long it may take in all where it alone holds the best schedule so far: that is not given up because the
machine is busy."""

_LOOK_SECONDS = 0.2


def start(module: str, folder: Path, *arguments: str, talks: bool = False) -> Child:
    """Start `python -m module arguments…` in `folder`, where its complaints and its temporary files are kept.

    It ends, with all that it started, soon after we are gone, however we went. It finds modules on
    `search_path`. talks: its standard input and output are pipes.
    """
    pipe = subprocess.PIPE if talks else subprocess.DEVNULL
    with (folder / "complaint").open("wb") as complaint:
        return subprocess.Popen(
            [*_python(), "-c", _BEGIN, str(os.getpid()), ascii(search_path()), module, *arguments],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=pipe,
            stdout=pipe,
            stderr=complaint,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the child with all it started
        )


_BEGIN = (
    "import sys; sys.path[:] = eval(sys.argv.pop(2)); "
    "from memplan.solvers.child import main; main(sys.argv[1:])"
)
"""The first statements of a child, which set its path. Before them Python imports what it starts with, from
where it looks then. So PYTHONPATH stays what it is: with the folder of a script in it, a file enum.py there
would come before Python's own, which the script has loaded before its folder was added."""

_FLAGS = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}


def _python() -> list[str]:
    """This interpreter, with its options that decide where modules come from."""
    flags = (flag for name, flag in _FLAGS.items() if getattr(sys.flags, name))
    return [sys.executable, "-W", "ignore", *flags]


def search_path() -> list[str]:
    """Return the folders in which a child looks for modules: those of this process, Python's own first.

    "" is left out, the current folder. A child needs nothing of the user's: a file with the name of one of
    Python's modules would break it, though this process may have loaded Python's.
    """
    standard = os.path.dirname(os.__file__)
    own = (standard, os.path.join(standard, "lib-dynload"))
    return sorted((os.path.abspath(path) for path in sys.path if path), key=lambda path: path not in own)


class Dialogue:
    """A child that is told lines and tells lines. It ends when its input is closed (`listen`)."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.child = start(module, folder, *arguments, talks=True)
        self._told: SimpleQueue[bytes] = SimpleQueue()
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self.child.stdout or ():
            self._told.put(line)
        self.child.wait()
        self._told.put(b"")

    def say(self, line: str) -> None:
        """Nothing happens where the child is gone."""
        if self.child.stdin is not None:
            with suppress(BrokenPipeError, ValueError):  # ValueError: it is closed, we have ended the child
                self.child.stdin.write(f"{line}\n".encode())
                self.child.stdin.flush()

    def hear(self, seconds: float) -> str | None:
        """The next line; empty once the child is gone, None where none comes in so many seconds."""
        try:
            return self._told.get(timeout=seconds).decode()
        except Empty:
            return None

    def last_words(self) -> str:
        return last_words(self.child, self.folder)

    def end(self) -> None:
        kill(self.child)
        self._listener.join(_LOOK_SECONDS)  # it ends with its input, which a stranger may still hold open
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def listen(take: Callable[[str], object]) -> None:
    """In a child that talks: give each line that comes in to `take`, in a thread; the last one ends us."""

    def read() -> None:
        for line in sys.stdin:
            take(line)
        os._exit(0)

    Thread(target=read, daemon=True).start()


@cache
def end_with(parent: int) -> None:
    """End this process, with those of its group if it leads one, once it is no longer a child of `parent`."""
    if os.name == "posix":
        Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        sleep(_LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def stop(child: Child) -> None:
    """Ask the child to end, and what it started in sessions of their own; then end it."""
    if os.name == "posix" and child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(LAST_SECONDS)
    kill(child)


def kill(child: Child) -> None:
    """With all that it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # nobody is left, or nobody alive
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def last_words(child: Child, folder: Path) -> str:
    """The last line that a crashed child wrote, or what ended it."""
    lines = (folder / "complaint").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {child.returncode}"


def main(arguments: list[str]) -> None:
    """Run a module in this process, which is a child. arguments: the parent's number, the module, its own."""
    parent, *sys.argv = arguments
    end_with(int(parent))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
