"""Signals that end a command: SIGTERM and SIGHUP do what Ctrl-C does, and each has its exit code."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import sleep
from types import FrameType
from typing import NoReturn

from ..solvers.workers.process import LAST_SECONDS

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

_AGAIN_SECONDS = 0.05
"""Seconds after which a signal that was lost is sent once more."""


class Interruption:
    """State of an interruption. signal: the first that arrived, None if none has."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._over = False

    def over(self) -> None:
        """Note that the command has ended: later signals change nothing."""
        self._over = True

    @property
    def exit_code(self) -> int:
        """Exit code that shells report for a process that such a signal ended."""
        return 128 + (self.signal or signal.SIGINT)

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        del frame
        if not self._over:
            # The first one decides the exit code.
            self.signal = self.signal or number
            raise KeyboardInterrupt

    def repeat(self) -> None:
        """Send the signal once more.

        It was lost: code called from C, such as a destructor, can't raise it further.
        """
        threading.Timer(_AGAIN_SECONDS, self._raise).start()

    def _raise(self) -> None:
        if self.signal is not None and not self._over:
            os.kill(os.getpid(), self.signal)


@contextmanager
def interruptible() -> Generator[Interruption]:
    """Make these signals raise KeyboardInterrupt in the block, except those that are ignored."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    # nohup ignores SIGHUP; None is a handler in C.
    theirs = {number for number, handler in before.items() if handler in (signal.SIG_IGN, None)}
    atexit.register(_end_quietly)
    hook = sys.unraisablehook

    def lost(details: sys.UnraisableHookArgs) -> None:
        interruption.repeat() if details.exc_type is KeyboardInterrupt else hook(details)

    sys.unraisablehook = lost
    try:
        for number in before.keys() - theirs:
            signal.signal(number, interruption.take)
        yield interruption
    finally:
        sys.unraisablehook = hook
        for number in before.keys() - theirs:
            signal.signal(number, before[number])


def leave(code: int) -> NoReturn:
    """End the process with this exit code, as the interpreter would, but within LAST_SECONDS.

    Threads are joined and exit functions run as usual. Threads that still run then are ended with the
    process. This bypasses the interpreter's own end: a thread that returns from compiled code after that
    aborts the process.
    """
    threading.Thread(target=_end_after, args=(LAST_SECONDS, code), daemon=True).start()
    with suppress(Exception):
        threading._shutdown()  # pyright: ignore
    with suppress(Exception):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    _end(code)


def _end_after(seconds: float, code: int) -> None:
    sleep(seconds)
    _end(code)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _end_quietly() -> None:
    """Suppress the traceback of a signal that arrives while Python ends."""
    for number in _ENDING:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
