"""Time that is counted, not waited for: of each stream of the device, and of each thread of the host.

What depends on something else is not earlier than its end, so the times are those of a machine on which every
operation and copy takes as long as its cost says, however busy this one is.

    HOST.seconds          of the calling thread
    HOST.reach(seconds)   it has waited for something that ended then
    with host_counted():  the jobs of the queues, and who waits for them, count too
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, local
from typing import Any
from unittest.mock import patch

from memplan.program.program import Operation
from memplan.runtime.run import queues, streams


class _Host(local):
    """The time of each thread of the host. seconds: of the calling thread."""

    seconds = 0.0

    def reach(self, seconds: float) -> None:
        self.seconds = max(self.seconds, seconds)

    def spend(self, seconds: float) -> None:
        self.seconds += seconds


HOST = _Host()


class HostStamp:
    """The time of the calling thread, as `Now` has the clock's."""

    def __init__(self) -> None:
        self.seconds = HOST.seconds

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: HostStamp) -> float:
        return 1000 * (end_event.seconds - self.seconds)


class Moment(Event):
    """A flag with the time at which it was set."""

    seconds = 0.0

    def come(self, seconds: float) -> None:
        self.seconds = seconds
        self.set()


@dataclass
class Costs:
    """Seconds of what the device is given. The rates may change while it works.

    operations: by name; those without an entry take none. slower: a factor on all of them.
    to_device, to_host: bytes/s of copies. unpinned: a factor on these for memory that is not pinned.
    """

    operations: dict[str, float]
    to_device: float
    to_host: float
    slower: float = 1.0
    unpinned: float = 0.5

    def of(self, operation: Operation) -> float:
        return self.slower * self.operations.get(operation.name, 0.0)

    def of_copy(self, size: int, *, upwards: bool, pinned: bool) -> float:
        rate = self.to_device if upwards else self.to_host
        return size / (rate if pinned else rate * self.unpinned)


@contextmanager
def host_counted() -> Generator[None]:
    """Jobs begin when they were given, and whoever waits for one goes on when it has ended."""
    # By identity: a ticket takes no weak references. One with the identity of another that is gone has new
    # times before they are read.
    ends, given = dict[int, float](), dict[int, float]()
    job_made, run = queues.Job.__init__, queues.Job.run
    end, error = queues.Ticket.end, queues.Ticket.error

    def made(job: Any, *arguments: Any) -> None:
        given[id(arguments[0])] = HOST.seconds
        job_made(job, *arguments)

    def ran(job: Any) -> None:
        HOST.reach(given.get(id(job.ticket), 0.0))
        run(job)

    def ended(ticket: Any, *raised: Any) -> None:
        ends[id(ticket)] = HOST.seconds
        end(ticket, *raised)

    def waited(ticket: Any) -> Any:
        found = error(ticket)
        HOST.reach(ends.get(id(ticket), 0.0))
        return found

    # A copy that goes at once or not, as its thread happens to be through, would change the times.
    at_once = patch.object(streams.StreamQueue, "goes_at_once", lambda *_, **_named: False)
    with (
        at_once,
        patch.object(queues.Job, "__init__", made),
        patch.object(queues.Job, "run", ran),
        patch.object(queues.Ticket, "end", ended),
        patch.object(queues.Ticket, "error", waited),
    ):
        yield
