"""Streams made of threads, with CUDA's semantics, and delays drawn from a seed.

A stream runs what it was given in order, late at random. An event that is recorded stands for the place in
the stream; one that never was is passed, and a wait for it does nothing. The first thing that fails makes the
device faulty: it is told by whatever asks the device next, as CUDA's errors are.

Each stream has a time of its own too, in seconds that nobody waits for: what it is given takes as long as is
said, and what waits for an event is not earlier than that (clock.py).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from random import Random
from threading import Thread, current_thread, local
from time import sleep

import torch

from .clock import HOST, Moment

Work = Callable[[], None]


class DeviceFaultError(RuntimeError):
    """What ran on the device has failed, or was found to be a hazard."""


class Delays:
    """Some pieces of work start late, by up to `seconds`, the share of them too. One for each thread."""

    def __init__(self, seed: str, share: float = 0.3, seconds: float = 1e-3) -> None:
        self._random, self._share, self._seconds = Random(seed), share, seconds

    def pause(self) -> None:
        if self._random.random() < self._share:
            sleep(self._random.random() * self._seconds)


class Trouble:
    """The first error of the device."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def tell(self) -> None:
        """Raises DeviceFaultError if there was one."""
        if self.error is not None:
            raise DeviceFaultError(f"the device has failed: {self.error!r}") from self.error


class ThreadStream:
    def __init__(self, number: int, delays: Delays, trouble: Trouble, streams: Streams) -> None:
        self.number, self.delays, self.seconds = number, delays, 0.0
        self._trouble, self._streams = trouble, streams
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = Thread(target=_run, args=(self._queue, trouble), daemon=True, name=f"stream {number}")
        self._thread.start()

    def give(self, work: Work, seconds: float | None = None) -> None:
        """seconds: that it takes, from when it is given at the earliest; None of what is no work."""
        if seconds is None:
            self._queue.put(work)
            return
        given = HOST.seconds

        def timed() -> None:
            self.seconds = max(self.seconds, given)
            work()
            self.seconds += seconds

        self._queue.put(timed)

    def wait_event(self, event: ThreadEvent) -> None:
        flag = event.flag
        if flag is not None:
            self.give(lambda: self._wait(flag))

    def _wait(self, flag: Moment) -> None:
        _passed(flag)
        self.seconds = max(self.seconds, flag.seconds)

    def record_event(self) -> ThreadEvent:
        event = ThreadEvent(self._streams)
        event.record_on(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def close(self) -> None:
        """The thread ends with the work that it has."""
        self._queue.put(None)

    def join(self) -> None:
        if self._thread is not current_thread():
            self._thread.join(10)


class ThreadEvent:
    """flag: set when the stream has come to where the event was recorded last; None before that."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.flag: Moment | None = None

    def record(self) -> None:
        self.record_on(self._streams.current)

    def record_on(self, stream: ThreadStream) -> None:
        flag = self.flag = Moment()
        stream.give(lambda: flag.come(stream.seconds), 0.0)

    def synchronize(self) -> None:
        if self.flag is not None:
            _passed(self.flag)
            HOST.reach(self.flag.seconds)
        self._streams.trouble.tell()


class ThreadStamp:
    """When the stream has come to here, by its own time or by the clock."""

    def __init__(self, stream: ThreadStream, clock: Callable[[], float]) -> None:
        self._seconds: float | None = None
        self._clock = clock
        stream.give(self._come, 0.0)

    def _come(self) -> None:
        self._seconds = self._clock()

    def query(self) -> bool:
        return self._seconds is not None

    def elapsed_time(self, end_event: ThreadStamp) -> float:
        assert self._seconds is not None
        assert end_event._seconds is not None
        return 1000 * (end_event._seconds - self._seconds)


class Streams(local):
    """current: of each thread; at first the one that computes."""

    def __init__(self, trouble: Trouble, first: list[ThreadStream]) -> None:
        self.trouble = trouble
        self._first = first
        self._current: ThreadStream | None = None

    @property
    def current(self) -> ThreadStream:
        return self._current or self._first[0]

    @current.setter
    def current(self, stream: ThreadStream) -> None:
        self._current = stream


def _run(queue: SimpleQueue[Work | None], trouble: Trouble) -> None:
    torch.get_num_threads()  # a new thread asks how many it may use, else some kernels take all
    while (work := queue.get()) is not None:
        try:
            work()
        except BaseException as error:
            trouble.error = trouble.error or error.with_traceback(None)
        del work


def _passed(flag: Moment) -> None:
    if not flag.wait(300):
        raise DeviceFaultError("a stream has waited for five minutes")
