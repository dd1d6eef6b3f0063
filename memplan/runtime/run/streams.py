"""The queues of a device with streams: copies from and to it on two separate streams.

A copy that waits for nothing but the device is put on its stream by the training thread, at once: a second
thread would compete with it for the interpreter. One that has to wait for another thread (a file that is
read, an update on the CPU) or for host memory is given to the queue's own thread, and so is all after it in
that queue until the thread is through. What a copy waits for on the device it leaves to its stream. A ticket
ends in two steps: the copy is given to its stream, with an event after it; later that event has passed.

All device memory is allocated and freed by the training thread, on its own stream. That is safe because

- a copy waits for the computations given before it: every earlier user of its target's memory has ended;
- before memory is freed that a copy reads or fills, the computing stream waits for that copy's event.

Host memory is the device's to copy from (pinned). A block that is dropped is held until the copies of it have
ended (devices/storage/host_buffers.py), and its allocator too gives it to nobody before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...devices.device.device import Event, Stream, StreamDevice
from ...devices.storage.host_buffers import HostBuffer
from ...planner.simulator.clock import Queue
from .queues import Job, JobQueue, Queues, Ticket, Work


class DeviceTicket(Ticket):
    """Ticket of a copy on a stream.

    event: recorded when the copy is on its stream.
    """

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event

    def on_stream(self) -> BaseException | None:
        """Wait until the copy has been given to its stream, and return what that raised."""
        return super().error()

    def error(self) -> BaseException | None:
        if (error := self.on_stream()) is not None:
            return error
        try:
            self.event.synchronize()
        except Exception as raised:  # what a kernel did wrong comes out at the next synchronisation
            return raised
        return None


class DeviceJob(Job):
    """A copy, enqueued on a stream after what it waits for."""

    __slots__ = ("computed", "device", "stream")

    def __init__(self, work: Work, arguments: tuple[Any, ...], device: StreamDevice, stream: Stream) -> None:
        ticket = DeviceTicket(device.event())
        super().__init__(ticket, self._on_stream(work, ticket.event), arguments)
        self.device, self.stream = device, stream
        self.computed = device.current_stream().record_event()  # after all computations given so far

    def wait(self) -> BaseException | None:
        """Wait for what the copy needs: the stream waits for copies on the device, the thread for other
        jobs.
        """
        self.stream.wait_event(self.computed)
        return next(filter(None, (wait_on(self.stream, ticket) for ticket in self.after)), None)

    def _on_stream(self, work: Work, event: Event) -> Work:
        def enqueue(*arguments: Any) -> None:
            with self.device.on(self.stream):
                work(*arguments)
                event.record()

        return enqueue


class StreamQueue(JobQueue):
    def __init__(self, name: str, device: StreamDevice) -> None:
        super().__init__(name)
        self._device, self._stream = device, device.stream()
        self._last: Ticket | None = None

    def add(
        self, work: Work, arguments: tuple[Any, ...], after: Iterable[Ticket], gone: tuple[Any, ...]
    ) -> Ticket:
        after = tuple(after)
        if not self.goes_at_once(arguments, after, gone):
            self._last = super().add(work, arguments, after, gone)
            return self._last
        self._drained, self._last = (
            False,
            None,
        )  # the thread has nothing left: later copies may go at once too
        job = self.job(work, arguments)
        job.after = after
        job.run()
        return job.ticket

    def goes_at_once(
        self, arguments: tuple[Any, ...], after: tuple[Ticket, ...], gone: tuple[Any, ...]
    ) -> bool:
        """Tell whether the calling thread need not wait for anything, and the queue's has nothing left to do.

        A block that is not there yet may have to wait for host memory, and what is freed leaves some. A copy
        from or to memory that is not pinned is over before the call returns.
        """
        if gone or not all(ticket.given() for ticket in (self._last, *after) if ticket is not None):
            return False
        blocks = [argument for argument in arguments if isinstance(argument, HostBuffer)]
        return all(block.is_open and block.is_pinned for block in blocks)

    def job(self, work: Work, arguments: tuple[Any, ...]) -> Job:
        return DeviceJob(work, arguments, self._device, self._stream)


class Streams(Queues):
    def __init__(self, device: StreamDevice, *, ranks: bool = False) -> None:
        self._device = device
        super().__init__(ranks=ranks)

    def new(self, queue: Queue) -> JobQueue:
        if queue in (Queue.D2H, Queue.H2D, Queue.COMM):
            return StreamQueue(queue.name.lower(), self._device)
        return super().new(queue)

    def wait(self, ticket: Ticket) -> None:
        assert isinstance(ticket, DeviceTicket), "a computation on the device waits for copies alone"
        if (error := wait_on(self._device.current_stream(), ticket)) is not None:
            raise error


def wait_on(stream: Stream, ticket: Ticket) -> BaseException | None:
    """Let the stream wait for a copy on another stream, the thread for another job: what that has raised."""
    if not isinstance(ticket, DeviceTicket):
        return ticket.error()
    if (error := ticket.on_stream()) is None:
        stream.wait_event(ticket.event)
    return error
