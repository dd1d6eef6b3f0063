"""Signals while an iteration runs: Python's handlers are deferred when they would leave state half
changed.

Python runs a signal's handler between any two of its instructions, and a handler may raise: Ctrl-C, a timeout
by SIGALRM. Between the first update of a weight and the count of the last one that would leave weights of one
iteration with counts of another.

    with deferred_signals():          handlers wait until the end of the block
        …                             what begins an iteration
        with open_to_signals():       they run at once; Ctrl-C only when it comes a second time
            …                         what computes, and is undone or given up if it fails
        …                             what ends it

While the exception of a handler passes, all others wait: what puts things in order after it is not
interrupted by the next one. A block within an open one defers them too, and runs what has come when it ends.

The exception of a handler is not lost. Code within a block that catches every Exception, to go on without
something or to say that a model can't be traced, may catch it too: it is raised at the end of the block then.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_SIGNALS = signal.valid_signals()
"""Those of the system, which takes Python as long to list as to look all up."""


class _State(Enum):
    CLOSED = 0
    OPEN = 1
    OPEN_TO_ALL = 2


@contextmanager
def deferred_signals() -> Generator[None]:
    """Run the handlers of signals that come within the block after it. Python runs handlers in the main
    thread alone, so in another one nothing is done."""
    if current_thread() is not main_thread():
        yield
    elif _outermost:
        try:
            with _outermost[0].set(_State.CLOSED):
                yield
        finally:
            _outermost[0].run_those_that_came()
    else:
        deferral = _Deferral()
        try:
            deferral.begin()
            yield
        finally:
            deferral.end()


@contextmanager
def open_to_signals(*, first_interrupt: bool = False) -> Generator[None]:
    """Run handlers at once within the block.

    first_interrupt: that of a first Ctrl-C too, which else waits for the end of `deferred_signals`.
    """
    if current_thread() is not main_thread() or not _outermost:
        yield
        return
    with _outermost[0].set(_State.OPEN_TO_ALL if first_interrupt else _State.OPEN):
        yield


class _Deferral:
    def __init__(self) -> None:
        self._state = _State.CLOSED
        self._ended = False
        self._raised: BaseException | None = None  # by a handler, the first
        self._came: list[int] = []
        self._handlers: dict[int, Handler] = {}

    @contextmanager
    def set(self, state: _State) -> Generator[None]:
        self._state, before = state, self._state
        try:
            yield
        finally:
            self._state = before

    def begin(self) -> None:
        _outermost.append(self)
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def end(self) -> None:
        """Put the handlers back, then run those whose signals came. Raises what the first of them raises."""
        passing = sys.exception()
        self._ended = True  # before all else: one that can't be put back passes its signals on
        _outermost.clear()
        errors: list[BaseException] = []
        if isinstance(self._raised, Exception) and self._raised is not passing:  # it was caught on its way
            errors.append(self._raised)
        left = dict(self._handlers)
        while left:
            try:
                for number in list(left):
                    signal.signal(number, left[number])  # first runs the handlers of signals that have come
                    del left[number]
            except BaseException as error:  # one of them raised: the others are put back all the same
                errors.append(error)
        for number in dict.fromkeys(self._came):
            if number == signal.SIGINT and isinstance(passing, KeyboardInterrupt):
                continue  # the second one has acted, and its exception has the notes of what was put back
            try:
                self._handlers[number](number, None)
            except BaseException as error:
                errors.append(error)
        if errors and errors[0] is self._raised:
            raise errors[0] from None  # whatever passes instead came of it
        if errors:
            raise errors[0]

    def run_those_that_came(self) -> None:
        """Run the handlers that waited for the end of a closed block within an open one."""
        for number in dict.fromkeys(self._came):
            if not self._waits(number):
                self._came = [other for other in self._came if other != number]
                self._run(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        first = number not in self._came
        if not self._ended and self._waits(number) and (first or not self._is_open):
            self._came.append(number)
        else:
            self._run(number, frame)

    @property
    def _is_open(self) -> bool:
        return self._state != _State.CLOSED and not _passes(self._raised)

    def _waits(self, number: int) -> bool:
        """Tell whether the handler of a signal waits, if it is the first such signal."""
        return not self._is_open or (self._state == _State.OPEN and number == signal.SIGINT)

    def _run(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            self._raised = self._raised or error
            raise


def _passes(error: BaseException | None) -> bool:
    """Tell whether the exception, or one that was raised because of it, is on its way."""
    passing, seen = sys.exception(), set[int]()
    while error is not None and passing is not None and id(passing) not in seen:
        if passing is error:
            return True
        seen.add(id(passing))
        passing = passing.__cause__ or passing.__context__
    return False


_outermost: list[_Deferral] = []
"""The deferral in force, if there is one."""
