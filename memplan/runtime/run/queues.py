"""Ordered asynchronous queues alongside the compute queue, a thread each: d2h, h2d, disk_read, disk_write,
cpu; comm between the ranks of sharded training.

A queue takes its jobs in order. A job waits for the tickets of others, lets go of memory that it may have
once these have ended, does its work, and ends its own ticket. What fails in a thread is re-raised by each
thread that waits for it, in the end by the training thread. Jobs wait only for jobs given earlier, so none
waits for ever.

On the CPU the compute queue is the thread that gives the jobs; on CUDA see streams.py.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from traceback import walk_tb
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch

from ...devices.device.threads import update_threads, use_threads
from ...graphs.undisturbed import start_thread
from ...planner.simulator.clock import Queue
from ...torch_support.unsupported import warn_user

Work = Callable[..., None]


class Ticket:
    """A ticket for the end of a job."""

    __slots__ = ("_ended", "_error", "left")

    def __init__(self) -> None:
        """Start as not ended.

        left: what a job that failed was to work with, so that nothing is lost with it.
        """
        self._ended = Event()
        self._error: BaseException | None = None
        self.left: tuple[Any, ...] = ()

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._ended.set()

    def given(self) -> bool:
        """Tell whether the job's thread is done with it."""
        return self._ended.is_set()

    def error(self) -> BaseException | None:
        """Wait for the end of the job and return what it raised, if anything.

        An exception is re-raised by the training thread alone: another would change its traceback meanwhile.
        """
        self._ended.wait()
        return self._error

    def wait(self) -> None:
        """Wait until the job has ended, its bytes written. Raises what it raised."""
        if (error := self.error()) is not None:
            raise error


class Job:
    """A job: work(*arguments), after some tickets.

    gone: what is let go of between the waits and the work.

    Whatever it holds is dropped before its ticket ends: the memory is then its owner's alone.
    """

    __slots__ = ("after", "arguments", "gone", "ticket", "work")

    def __init__(self, ticket: Ticket, work: Work, arguments: tuple[Any, ...]) -> None:
        self.ticket, self.work, self.arguments = ticket, work, arguments
        self.after: tuple[Ticket, ...] = ()
        self.gone: tuple[Any, ...] = ()

    def wait(self) -> BaseException | None:
        """Wait until all that the job waits for has ended, or one has failed, and return what that has
        raised.
        """
        return next(filter(None, (ticket.error() for ticket in self.after)), None)

    def run(self) -> None:
        try:
            if (error := self.wait()) is None:
                self.gone = ()
                self.work(*self.arguments)
        except BaseException as raised:
            forget_frames(raised)
            error = raised.with_traceback(None)  # a ticket is kept, and would keep the frames
        if error is not None:
            self.ticket.left = self.arguments
        self.after = self.gone = self.arguments = ()
        del self.work
        self.ticket.end(error)


class JobQueue:
    """One thread, started with its first job. If the system has no further one, the thread that gives a job
    does it.

    Results are the same: a job waits only for jobs given earlier, which are done, or which other threads do.
    """

    def __init__(self, name: str, threads: int | None = None) -> None:
        """Create the queue; its thread starts with the first job.

        threads: number that its jobs may use in PyTorch, by default as many as any.
        """
        self.name, self._threads = name, threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._drained, self._dropping = True, False
        self._has_thread = True

    def add(
        self, work: Work, arguments: tuple[Any, ...], after: Iterable[Ticket], gone: tuple[Any, ...]
    ) -> Ticket:
        job = self.job(work, arguments)
        job.after, job.gone = tuple(after), gone
        if self._thread is None and self._has_thread:
            self._start()
        if not self._has_thread:
            job.run()
            return job.ticket
        self._drained = False
        self._jobs.put(job)
        return job.ticket

    def _start(self) -> None:
        begun = Event()
        try:
            # Only now the queue has it: no job may wait for a thread that could not start.
            self._thread = start_thread(self._run, begun, name=f"memplan {self.name}")
        except RuntimeError as error:
            self._has_thread = False
            warn_user(
                f"{self.name} copies or updates have no thread of their own ({error}): they are made between "
                "computations, slower than planned: allow more threads (ulimit -u, docker run --pids-limit)"
            )
            return
        begun.wait()  # no other thread may begin meanwhile: it might take this one's number of threads
        _started.add(self)

    def job(self, work: Work, arguments: tuple[Any, ...]) -> Job:
        return Job(Ticket(), work, arguments)

    def drain(self) -> None:
        """Wait until all jobs have ended, whether or not they failed."""
        if not self._drained:
            self.add(_nothing, (), (), ()).wait()
            self._drained = True  # set by the thread that gives the jobs: no other adds any meanwhile

    def close(self) -> None:
        """Let the thread end with the jobs that it has."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the end of the thread. Who gives a job after that, as at the program's exit, does it."""
        if self._thread is not None:
            self._thread.join()
            self._thread, self._has_thread = None, False

    def drop(self) -> None:
        """Make jobs that have not begun fail instead of running them."""
        self._dropping = True

    def _run(self, begun: Event) -> None:
        try:
            number = torch.get_num_threads()  # a new thread asks, else some kernels take all
            use_threads(self._threads or number)
        finally:
            begun.set()
        while (job := self._jobs.get()) is not None:
            if self._dropping:
                job.ticket.end(RuntimeError("the program was ended before this was done"))
            else:
                job.run()
            del job


def forget_frames(error: BaseException, but: BaseException | None = None) -> None:
    """Clear the frames of an exception and of its causes, so that they hold no tensors.

    Someone may keep the exception: a notebook does. A job's own frames do too: they have its ticket, and that
    has the exception, whose innermost frame leads back to them. Such a ring would go at the next collection.

    but: an exception that was there before, left alone with its causes.
    """
    known, waiting = [but], [error]
    while waiting:
        one = waiting.pop()
        if not any(one is other for other in known):
            known.append(one)
            for frame, _line in walk_tb(one.__traceback__):
                _clear(frame)
            waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]


def _clear(frame: FrameType | None) -> None:
    """Clear a frame and its callers, to the first that still runs."""
    with suppress(RuntimeError):
        while frame is not None:
            frame.clear()
            frame = frame.f_back


def _nothing() -> None:
    pass


_started: WeakSet[JobQueue] = WeakSet()


@atexit.register
def end_all() -> None:
    """Join all threads, without a limit: all jobs are done, after Ctrl-C those under way.

    None may be inside a library, CUDA say, while the process takes that down, and the interpreter aborts when
    PyTorch comes back to it after its end.
    """
    queues = list(_started)
    for queue in queues:
        queue.close()
    for queue in queues:
        while True:
            try:
                queue.join()
                break
            except KeyboardInterrupt:
                for each in queues:
                    each.drop()


class Queues:
    """The queues alongside the compute queue, if that is a separate thread on the CPU."""

    def __init__(self, *, ranks: bool = False) -> None:
        """Create the queues. ranks: that between ranks is among them."""
        others = (Queue.COMPUTE,) if ranks else (Queue.COMPUTE, Queue.COMM)
        self._queues = {queue: self.new(queue) for queue in Queue if queue not in others}

    def new(self, queue: Queue) -> JobQueue:
        return JobQueue(queue.name.lower(), update_threads() if queue == Queue.CPU else None)

    def add(
        self,
        queue: Queue,
        work: Work,
        arguments: tuple[Any, ...],
        after: Iterable[Ticket],
        gone: tuple[Any, ...],
    ) -> Ticket:
        return self._queues[queue].add(work, arguments, after, gone)

    def wait(self, ticket: Ticket) -> None:
        """Make the compute queue wait for the ticket."""
        ticket.wait()

    def drain(self) -> None:
        for queue in self._queues.values():
            queue.drain()

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
