"""Times at which the operations and copies of iterations begin and end, noted by the code that runs them.

    mark()          before each computation, and after the last: what is between two is the former's, but for
    wait(ticket)    what the compute queue waits in between
    timed(…)        around the job of another queue, from when it has waited to when its work has ended

Streams have the device's stamps; what threads of the host do, updates and copies of files, has the host's: a
stamp of theirs would stand in the computing stream, after all that is queued there.

So an operation is timed within the iteration: with the copies that run concurrently, the memory that it
finds, the Python around it. On the CPU a stamp is a read of the clock; on a device with streams an event, and
nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from ...devices.device.device import Device, Now, Stamp
from ...devices.storage.host_buffers import HostBuffer
from ...graphs.graph import Graph
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ...planner.simulator.clock import Queue, queue_of, transfer_queue
from ..codegen.copies import JOBS

_BY_STREAMS = (Queue.D2H, Queue.H2D)

Way = tuple[int, int]
"""An operation and its execution variant."""


class Copied(NamedTuple):
    """Copies by a transfer queue.

    seconds: of all together, each taken to be the median of its size.
    """

    bytes: int
    copies: int
    seconds: float


class Span(NamedTuple):
    """Time in which a step ran, in seconds after the thread came to the first computation."""

    queue: Queue
    step: int
    start: float
    end: float


class Times(NamedTuple):
    """Medians of iterations.

    seconds: of a run of each operation in the execution variant in which it ran.
    copied: by the transfer queues that had something to copy.
    spans: of the last iteration, by queue.
    """

    seconds: Mapping[Way, float]
    copied: Mapping[Queue, Copied]
    spans: Sequence[Span] = ()


class Stopwatch:
    """Stopwatch for some iterations of one schedule."""

    def __init__(self, device: Device, graph: Graph | None, schedule: Schedule) -> None:
        """Start without times.

        graph: not needed for a schedule without execution variants.
        """
        self._stamp = device.stamp
        self._steps: dict[Queue, list[int]] = {queue: [] for queue in Queue}
        self._ways: list[Way] = []
        for step, (verb, target, where) in enumerate(schedule.rows()):
            if verb == Verb.COMPUTE:
                if graph is not None and target in graph.operations.comm:
                    self._steps[Queue.COMM].append(step)
                    continue
                on_cpu = where != DEFAULT_MODE and graph is not None and graph.on_host(target, where)
                self._steps[Queue.CPU if on_cpu else Queue.COMPUTE].append(step)
                if not on_cpu:
                    self._ways.append((target, where))
            elif verb != Verb.DELETE:
                between_ranks = graph is not None and target in graph.tensors.spread
                self._steps[Queue(queue_of(transfer_queue(verb, where), between_ranks))].append(step)
        self._laps: list[tuple[list[Stamp], list[tuple[int, Stamp, Stamp]]]] = []
        self._origin: Stamp = Now()
        self._jobs: list[tuple[Way | Queue, int, Stamp, Stamp]] = []

    def lap(self) -> None:
        """Begin an iteration."""
        self._laps.append(([], []))

    def mark(self) -> None:
        if not self._laps[-1][0]:
            self._origin = Now()
        self._laps[-1][0].append(self._stamp())

    def around(self, tools: Mapping[str, Any]) -> dict[str, Any]:
        """Return the free names of the code, timed. `add` and its arguments stay as they are."""
        copies = {name: self._copying(queue, tools[name]) for queue, name in JOBS.items() if name in tools}
        return {**copies, "wait": self._waiting(tools["wait"]), "mark": self.mark, "timed": self._timed}

    def times(self) -> Times | None:
        """Return the times; None if no iteration has ended. All jobs and the device must have ended."""
        whole = [lap for lap in self._laps if len(lap[0]) == len(self._ways) + 1]
        if not whole:
            return None
        by_way: dict[Way, list[float]] = {}
        for marks, waits in whole:
            waited = [0.0] * (len(marks) + 1)
            for place, begun, ended in waits:
                waited[place] += begun.elapsed_time(ended) / 1000
            one: dict[Way, list[float]] = {}
            for place, way in enumerate(self._ways):
                between = marks[place].elapsed_time(marks[place + 1]) / 1000
                one.setdefault(way, []).append(max(0.0, between - waited[place + 1]))
            for way, runs in one.items():
                by_way.setdefault(way, []).append(fmean(runs))
        copied: dict[Queue, dict[int, list[float]]] = {}
        for what, size, begun, ended in self._jobs:
            seconds = begun.elapsed_time(ended) / 1000
            if isinstance(what, Queue):
                copied.setdefault(what, {}).setdefault(size, []).append(seconds)
            else:
                by_way.setdefault(what, []).append(seconds)
        seconds = {way: median(runs) for way, runs in by_way.items()}
        copies = {queue: _copied(sizes) for queue, sizes in copied.items()}
        return Times(seconds, copies, list(self._spans(*whole[-1])))

    def _spans(self, marks: Sequence[Stamp], waits: Sequence[tuple[int, Stamp, Stamp]]) -> Iterator[Span]:
        """Yield the spans of the last iteration.

        Queues are first in first out, so their last jobs are its own.
        """
        waited: dict[int, float] = {}
        for place, begun, ended in waits:
            waited[place] = waited.get(place, 0.0) + begun.elapsed_time(ended)
        at = [marks[0].elapsed_time(mark) for mark in marks]
        for place, step in enumerate(self._steps[Queue.COMPUTE]):
            start = min(at[place] + waited.get(place + 1, 0.0), at[place + 1])
            yield Span(Queue.COMPUTE, step, start / 1000, at[place + 1] / 1000)
        jobs: dict[Queue, list[tuple[Stamp, Stamp]]] = {}
        for what, _size, begun, ended in self._jobs:
            jobs.setdefault(what if isinstance(what, Queue) else Queue.CPU, []).append((begun, ended))
        for queue, of in jobs.items():
            steps = self._steps[queue]
            for step, (begun, ended) in zip(steps, of[-len(steps) :], strict=True):
                # The host's stamps are not comparable with those of a stream.
                first = marks[0] if queue in _BY_STREAMS else self._origin
                start = first.elapsed_time(begun) / 1000
                yield Span(queue, step, start, start + begun.elapsed_time(ended) / 1000)

    def _waiting(self, wait: Callable[[Any], None]) -> Callable[[Any], None]:
        def waiting(ticket: Any) -> None:
            begun = self._stamp()
            wait(ticket)
            marks, waits = self._laps[-1]
            waits.append((len(marks), begun, self._stamp()))

        return waiting

    def _copying(self, queue: Queue, copy: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        stamp = self._stamp if queue in _BY_STREAMS else Now

        def copying(source: Any, target: Any) -> None:
            begun = stamp()
            copy(source, target)
            size = max(end.size for end in (source, target) if isinstance(end, HostBuffer))
            self._jobs.append((queue, size, begun, stamp()))

        return copying

    def _timed(self, way: Way, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            begun = Now()
            call(*arguments)
            self._jobs.append((way, 0, begun, Now()))

        return timed


def _copied(sizes: Mapping[int, Sequence[float]]) -> Copied:
    """Return the bytes, the number and the seconds of copies.

    sizes: by size, the seconds of each copy.
    """
    seconds = sum(len(taken) * median(taken) for taken in sizes.values())
    moved = sum(size * len(taken) for size, taken in sizes.items())
    return Copied(moved, sum(map(len, sizes.values())), max(seconds, 1e-9))
