"""The worker's side of a call: calls come in; reports, results and errors go out.

    python -c … PARENT NICENESS IDLE     as process.start starts it

PARENT: number of the process that it ends with. NICENESS: by which it and all that it starts yield to other
processes. IDLE: seconds without a call after which it ends by itself; inf: never.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from math import inf
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, main_thread
from time import sleep
from types import FrameType
from typing import IO, Any

from .messages import Message, MessageKind, portable, receive, send
from .process import end_group, end_with

_INSIST_SECONDS = 0.5
"""Seconds between interrupts of a function, until it heeds one."""


class Call:
    """A call under way, as its function sees it.

    stopped: set once the result is requested at once.
    """

    def __init__(self, number: int, outgoing: SimpleQueue[Message | None]) -> None:
        self.number, self.stopped = number, Event()
        self._outgoing, self._lock = outgoing, Lock()
        self._action: Callable[[], object] | None = None

    def report(self, event: object) -> None:
        """Send an event to the program.

        This waits for nothing: a thread does the writing, so that a search goes on while the program is busy.
        """
        self._outgoing.put(Message.of(MessageKind.EVENT, self.number, event))

    def on_stop(self, action: Callable[[], object] | None) -> None:
        """Have `action` called, in another thread, when the result is requested: at once if it is already.

        None: no longer.
        """
        with self._lock:
            self._action = action
            if self.stopped.is_set() and action is not None:
                action()

    def stop(self) -> None:
        """Pass on that the program wants the result."""
        with self._lock:
            self.stopped.set()
            if self._action is not None:
                self._action()

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Raise KeyboardInterrupt in the block, once, when the result is requested, as Ctrl-C does.

        One that comes after the block, when the result is sent, must not cost the result.
        """
        armed = True

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal armed
            del number, frame
            if armed:
                armed = False
                raise KeyboardInterrupt

        def insist() -> None:
            # a signal that comes just before a wait in native code does not end the wait: it is repeated
            while armed:
                _signal_main_thread()
                sleep(_INSIST_SECONDS)

        signal.signal(signal.SIGINT, interrupt)
        try:
            self.on_stop(Thread(target=insist, daemon=True).start)
            yield
        finally:
            armed = False
            self.on_stop(None)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal."""


def _signal_main_thread() -> None:
    if os.name == "posix":
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)  # it also ends a wait in native code
    else:
        signal.raise_signal(signal.SIGINT)


class _Server:
    """The threads that read and write, and the calls that wait for the main thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self.waiting = SimpleQueue[tuple[Call, Message]]()
        self._outgoing = SimpleQueue[Message | None]()
        self._calls = dict[int, Call]()
        self._incoming, self._pipe = incoming, outgoing
        Thread(target=self._read, daemon=True).start()
        self._writer = Thread(target=self._write, daemon=True)
        self._writer.start()

    def _read(self) -> None:
        while (message := receive(self._incoming)) is not None:
            if message.kind == MessageKind.CALL:
                call = self._calls[message.number] = Call(message.number, self._outgoing)
                self.waiting.put((call, message))
            elif message.number in self._calls:  # else it has answered meanwhile
                self._calls[message.number].stop()
        end_group()

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                send(self._pipe, message)
            except OSError:  # the program is gone, and this process soon
                return

    def answer(self, call: Call, message: Message) -> None:
        """Run the function of a call and send what it returns or raises."""
        try:
            function, arguments = message.read()
            answer = Message.of(MessageKind.RETURN, call.number, resolve(function)(call, *arguments))
        except (Exception, KeyboardInterrupt) as error:
            answer = Message.of(MessageKind.RAISE, call.number, portable(error))
        self._calls.pop(call.number, None)
        self._outgoing.put(answer)

    def close(self) -> None:
        """Wait until all is written."""
        self._outgoing.put(None)
        self._writer.join()


def resolve(function: str) -> Callable[..., Any]:
    """Return the function of the name `module:function`."""
    module, _colon, name = function.partition(":")
    return getattr(import_module(module), name)


def main() -> None:
    """Answer one call after another, in the order in which they come."""
    parent, niceness, idle = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    end_with(parent)
    if os.name == "posix" and niceness:
        os.nice(niceness)
    # heeded in `Call.interruptible` only; unlike SIG_IGN, programs that are started do not inherit it
    signal.signal(signal.SIGINT, _ignore)
    server = _Server(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what a solver prints is not a message
    code = 0
    try:
        while True:
            server.answer(*server.waiting.get(timeout=None if idle == inf else idle))
    except Empty:
        server.close()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
        if not isinstance(ending.code, int | None):
            print(ending.code, file=sys.stderr)  # as the interpreter does
    except BaseException:
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not through the interpreter's end: a thread waits for a message
