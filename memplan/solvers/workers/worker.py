"""The program's side of a worker process: it calls a function there, and waits for the result."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import Popen
from threading import Lock, Thread
from time import monotonic
from types import TracebackType
from typing import IO, Any

from ...graphs.errors import MemplanError
from ...graphs.folders.scratch import Scratch
from . import process
from .messages import Message, MessageKind, WorkerFaultError, receive, send

__all__ = ["Ending", "Message", "MessageKind", "Pool", "Worker", "WorkerCrashedError", "WorkerFaultError"]

_LOOK_SECONDS = 0.05
"""Seconds between a wait's looks at the clock and at `cancelled`."""


class WorkerCrashedError(MemplanError):
    """The process of a worker died. exit_code: 0 if it ended by itself, being idle."""

    def __init__(self, reason: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(reason)


@dataclass(frozen=True)
class Ending:
    """End of a wait for a call.

    answered: the function has returned; else the worker did not stop in time and was ended.
    value: what the function returned.
    interrupted: Ctrl-C asked it to stop.
    cancelled: `cancelled` of `Worker.wait` asked it to stop.
    """

    answered: bool
    value: Any = None
    interrupted: bool = False
    cancelled: bool = False


class Worker:
    """A process that runs the functions it is called with, one at a time; used by one thread at a time.

    It ends with `end`, with the program, and once nothing refers to it.

    ready: no call is under way.
    """

    def __init__(self, kind: str, niceness: int = 0, idle_seconds: float = inf) -> None:
        """Start the worker process.

        kind: part of the name of its folder for temporary files.
        niceness: by which it yields to other processes.
        idle_seconds: how long it waits for a call before it ends by itself.
        """
        scratch = Scratch(kind)
        self.folder, self.number, self.ready = Path(scratch.name), 0, True
        self.process = process.start(self.folder, str(niceness), repr(idle_seconds))
        self._heard = SimpleQueue[Message]()
        self._listener = Thread(target=_listen, args=(self.process, self._heard), daemon=True)
        self._listener.start()
        self.end = weakref.finalize(self, _end, os.getpid(), self.process, self._listener, scratch)

    def call(self, function: str, *arguments: object) -> None:
        """Have a function run in the process.

        function: `module:function`. It gets a `serve.Call` and then `arguments`, which are pickled.
        """
        self.number += 1
        self.ready = False
        self._send(Message.of(MessageKind.CALL, self.number, (function, arguments)))

    def stop(self) -> None:
        """Ask the call under way for its result so far."""
        self._send(Message.of(MessageKind.STOP, self.number))

    def _send(self, message: Message) -> None:
        """Send a message. Nothing happens if the process is gone: `hear` says so."""
        with suppress(BrokenPipeError, ValueError):  # ValueError: the pipe is closed, the process was ended
            send(_pipe(self.process.stdin), message)

    def hear(self, seconds: float) -> Message | None:
        """Return the next message about the call under way; None if none comes in so many seconds."""
        try:
            message = self._heard.get(timeout=seconds) if seconds > 0 else self._heard.get_nowait()
        except Empty:
            return None
        self.ready = self.ready or message.kind in (MessageKind.RETURN, MessageKind.RAISE)
        return message

    def result(self, message: Message) -> Any:
        """Return what the function returned, raise what it raised.

        message: the last one of a call. Raises WorkerCrashedError if the process ended before.
        """
        if message.kind == MessageKind.ENDED:
            raise WorkerCrashedError(process.last_words(self.process, self.folder), self.process.wait())
        if message.kind == MessageKind.RAISE:
            raise message.read()
        return message.read()

    def wait(
        self,
        end: float = inf,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        event: Callable[[Any], object] = lambda _event: None,
        grace: Callable[[], float] = lambda: process.LAST_SECONDS,
    ) -> Ending:
        """Wait for the result of the call under way. The first Ctrl-C asks for it, a second one goes through.

        end: moment of `monotonic` at which the result is requested.
        cancelled: whether to request it now.
        event: called with each event that the function reports.
        grace: seconds that it may take after it was requested; then the process is ended.

        Raises what the function raised; WorkerCrashedError.
        """
        asked, interrupted, called_off = inf, False, False
        while True:
            try:
                left = _LOOK_SECONDS if asked < inf else max(0.0, end - monotonic())
                message = self.hear(min(_LOOK_SECONDS, left))
                if message is not None and message.kind != MessageKind.EVENT:
                    break
                if message is not None:
                    event(message.read())
                if asked == inf and ((called_off := cancelled()) or monotonic() >= end):
                    asked = monotonic()
                    self.stop()
                elif monotonic() > asked + grace():
                    self.end()
                    # what was sent before the end counts: a solution that was found is not lost
                    while (message := self.hear(0.0)) is not None and message.kind == MessageKind.EVENT:
                        event(message.read())
                    return Ending(False, None, interrupted, called_off)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted, end = True, 0.0
        return Ending(True, self.result(message), interrupted, called_off)

    def end_gently(self) -> None:
        """Ask the call under way to stop, so that it can end what it started in other sessions; then end."""
        self.stop()
        limit = monotonic() + process.LAST_SECONDS
        while not self.ready and self.process.poll() is None and (left := limit - monotonic()) > 0:
            self.hear(left)
        self.end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # process.start makes both
    return pipe


def _listen(worker: Popen[bytes], heard: SimpleQueue[Message]) -> None:
    while (message := receive(_pipe(worker.stdout))) is not None:
        heard.put(message)
    worker.wait()
    heard.put(Message.of(MessageKind.ENDED, 0))


def _end(owner: int, worker: Popen[bytes], listener: Thread, scratch: Scratch) -> None:
    """End a worker, at the latest when the program ends. A fork of the program leaves it alone."""
    if os.getpid() != owner:
        return
    process.kill(worker)
    listener.join(process.WATCH_SECONDS)  # it ends with its input, which a stranger may still hold open
    for pipe in (worker.stdin, worker.stdout):
        with suppress(OSError):
            _pipe(pipe).close()
    scratch.cleanup()


class Pool:
    """Workers of one kind, each used for one call after another; any number of threads may call."""

    def __init__(self, kind: str, niceness: int = 0, idle_seconds: float = inf) -> None:
        """Create an empty pool; the arguments are those of `Worker`."""
        self.kind, self.niceness, self.idle_seconds = kind, niceness, idle_seconds
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        # by the process that started them: a fork can't use its parent's pipes
        self._idle = dict[int, list[Worker]]()
        self._lock = Lock()

    def _take(self) -> Worker:
        while True:
            with self._lock:
                idle = self._idle.setdefault(os.getpid(), [])
                worker = idle.pop() if idle else None
            if worker is None:
                worker = Worker(self.kind, self.niceness, self.idle_seconds)
                with self._lock:
                    self.workers.add(worker)
                return worker
            if worker.process.poll() is None:
                return worker
            worker.end()

    def call(
        self,
        function: str,
        *arguments: object,
        end: float = inf,
        cancelled: Callable[[], bool] = lambda: False,
        event: Callable[[Any], object] = lambda _event: None,
        grace: Callable[[], float] = lambda: process.LAST_SECONDS,
    ) -> Ending:
        """Call a function in an idle worker or a new one, and wait, as `Worker.call` and `wait`."""
        while True:
            worker = self._take()
            try:
                worker.call(function, *arguments)
                return worker.wait(end, cancelled=cancelled, event=event, grace=grace)
            except WorkerCrashedError as crash:
                # one that was used before had begun to end by itself, being idle: a new one gets the call
                if crash.exit_code != 0 or worker.number == 1:
                    raise
            finally:
                self._give_back(worker)

    def _give_back(self, worker: Worker) -> None:
        """Keep a worker whose call is over; end one that is still at work."""
        if not worker.ready:
            worker.end()
            return
        with self._lock:
            self._idle.setdefault(os.getpid(), []).append(worker)

    def close(self) -> None:
        """End all workers, those at work included."""
        for worker in list(self.workers):
            worker.end()
