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
"""A signal that was lost comes again after so long."""


class Interruption:
    """signal: the first that came, None where none did."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._over = False

    def over(self) -> None:
        """The command has ended: what comes now changes nothing."""
        self._over = True

    @property
    def exit_code(self) -> int:
        """What shells give for a process that such a signal ended."""
        return 128 + (self.signal or signal.SIGINT)

    def take(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals."""
        del frame
        if not self._over:
            self.signal = self.signal or number
            raise KeyboardInterrupt

    def again(self) -> None:
        """It was lost: what C code calls, a destructor or a step of a compiler, can't pass it on."""
        threading.Timer(_AGAIN_SECONDS, self._raise).start()

    def _raise(self) -> None:
        if self.signal is not None and not self._over:
            os.kill(os.getpid(), self.signal)


@contextmanager
def interruptible() -> Generator[Interruption]:
    """In the block each of these signals raises KeyboardInterrupt, unless who called us ignores it."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    theirs = {number for number, handler in before.items() if handler in (signal.SIG_IGN, None)}
    atexit.register(_end_quietly)
    hook = sys.unraisablehook

    def lost(told: sys.UnraisableHookArgs) -> None:
        interruption.again() if told.exc_type is KeyboardInterrupt else hook(told)

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

    Threads are joined and exit functions run as usual. What is still at work then is ended with the process,
    which goes around the interpreter's own end: a thread that comes back from compiled code after that aborts
    the process.
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
    """What comes while Python ends needs no traceback any more."""
    for number in _ENDING:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
