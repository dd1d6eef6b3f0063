"""Placement of the transfers: each at its earliest time, in an order fixed beforehand (Algorithm 2).

Fetches in the order in which they are needed; copies to the host in the order in which the weights change,
those of weights that leave only later (an early upload, the paper's waiting list) whenever the link would be
idle. A transfer comes before the run during which it can start. A fetch must fit from there up to its use,
by list order, and must not delay the run before which it comes.

The paper starts at B_L and tries every cut of the cycle: what has been moved before. Here the cycle is
played, iteration after iteration, until one places what the one before placed: the cut that the rules lead
to. Linear in the runs and transfers of the iterations played.

Slips of the printed algorithm, corrected: it compares a time with a size (|w| / β is meant); a weight that is
on the host already leaves after its forward and the end of its upload; "earliest time feasible" means up to
the use; uploads on the waiting list may also come before forward runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..cycles.cycle import FROZEN, Cycle

_MAX_ITERATIONS = 10


def greedy_order(
    cycle: Cycle, chosen: Sequence[int], ranks: Mapping[int, int] | None = None
) -> list[int] | None:
    """Return the order (cycles/replay.py) of one iteration; None if none repeats or the limit is passed.

    ranks: per weight, its rank among those that leave, or are needed, at the same instant.
    """
    distances = _prefetch_distances(cycle, chosen, ranks)
    if distances is None:
        return None
    queues = _Queues(cycle, distances, ranks)
    last: list[int] = []
    for _ in range(_MAX_ITERATIONS):
        order = queues.run_iteration()
        if order is None:
            return None
        if order == last:
            break
        last = order
    tokens = {cycle.runs + cycle.intervals[a].version for a in chosen if cycle.intervals[a].version != FROZEN}
    fetched = {cycle.runs + len(cycle.changed_by) + a for a in chosen}
    return last if sorted(last) == sorted({*range(cycle.runs), *tokens, *fetched}) else None


@dataclass
class _Queues:
    """The state of links and memory while iterations are played.

    fetches: the offload intervals in order of need; `following` is the index of the next.
    used: bytes of weights on the device, those of pending deletes included.
    """

    cycle: Cycle
    distances: dict[int, int]
    ranks: Mapping[int, int] | None
    compute: float = 0.0
    to_host: float = 0.0
    to_device: float = 0.0
    used: int = 0
    following: int = 0
    pending: deque[tuple[int, float]] = field(default_factory=deque[tuple[int, float]])
    uploads: deque[int] = field(default_factory=deque[int])

    def __post_init__(self) -> None:
        cycle = self.cycle
        self.fetches = list(self.distances)
        self.offloaded: set[int] = set()
        self.fetched = dict.fromkeys(self.distances, 0.0)
        self.stored = [0.0] * len(cycle.changed_by)
        self.fresh = [True] * len(cycle.changed_by)
        self.in_flight: set[int] = set()
        self.leaving: dict[int, list[int]] = {}
        self.coming: dict[int, list[int]] = {}
        self.held: list[int] = []
        self.soon = list(cycle.need)
        # Runs that take no time leave no moment in between at which a delete could land: a run of them needs
        # at once what the most demanding one after it needs.
        for run in range(cycle.runs - 2, -1, -1):
            if not cycle.seconds[run]:
                self.soon[run] = max(self.soon[run], self.soon[run + 1])
        self.begun: dict[int, list[int]] = {}
        self.first_of: dict[int, int] = {}
        for number in self.distances:
            interval = cycle.intervals[number]
            self.leaving.setdefault(interval.after, []).append(number)
            self.coming.setdefault(interval.before, []).append(number)
            if interval.version != FROZEN:
                self._count_version(number)
            if interval.before <= interval.after:
                self.offloaded.add(number)
        # An interval around the iteration's end has already begun when the first iteration starts.
        self.used = sum(cycle.sizes) - sum(cycle.sizes[cycle.intervals[a].weight] for a in self.offloaded)

    def _count_version(self, number: int) -> None:
        """Record the first interval of each version."""
        interval = self.cycle.intervals[number]
        run = self.cycle.changed_by[interval.version][1]
        runs = self.cycle.runs
        first = self.first_of.get(interval.version)
        if first is None:
            self.begun.setdefault(run, []).append(interval.version)
        # One copy serves all intervals of a version; the first to begin after the change decides whether the
        # copy may wait.
        if first is None or (interval.after - run) % runs < (self.cycle.intervals[first].after - run) % runs:
            self.first_of[interval.version] = number

    def run_iteration(self) -> list[int] | None:
        """Play one iteration and return its list of runs and transfers; None if a run does not fit."""
        order: list[int] = []
        base = self.cycle.idle
        for run in range(self.cycle.runs):
            if self.cycle.seconds[run]:
                self._release(order)
            if not self._fetch(run, base, order):
                return None
            self._upload(run, order)
            start = max([self.compute, *(self.fetched[a] for a in self.coming.get(run, []))])
            room = self._room(self.cycle.need[run])
            if room is None:
                return None
            self._pop(self.cycle.need[run])
            self.compute = max(start, room) + self.cycle.seconds[run]
            base = self.cycle.rest[run]
            order.append(run)
            self._after(run, order)
        self._release(order)
        return order

    def _fetch(self, run: int, base: int, order: list[int]) -> bool:
        """List the fetches before the run; False if one that the run needs does not fit."""
        cycle = self.cycle
        # `due` must be listed before this run; further fetches may be, if they are near and delay nothing.
        due = {number for number in self.coming.get(run, []) if number in self.offloaded}
        while self.fetches:
            number = self.fetches[self.following]
            interval = cycle.intervals[number]
            if number not in self.offloaded:
                return not due
            size = cycle.sizes[interval.weight]
            room = self._room(base + size)
            if room is None:
                return not due
            start = max(self.compute, self.to_device, room, self._stored_end(interval.version))
            # Not earlier than its distance: further ahead, by list order, the memory belongs to other
            # weights.
            near = (interval.before - run) % cycle.runs <= self.distances[number]
            if not due and not (near and self._worthwhile(run, base, size, start)):
                return True
            self._pop(base + size)
            self.used += size
            self.to_device = self.fetched[number] = start + cycle.prefetch_seconds[interval.weight]
            self.offloaded.discard(number)
            due.discard(number)
            self.following = (self.following + 1) % len(self.fetches)
            order.append(cycle.runs + len(cycle.changed_by) + number)
        return not due

    def _worthwhile(self, run: int, base: int, size: int, start: float) -> bool:
        """Tell whether a fetch from `start` on begins before the run ends, and does not delay that run."""
        cycle = self.cycle
        begin = max([self.compute, *(self.fetched[a] for a in self.coming.get(run, []))])
        need = self.soon[run]
        alone, extra = self._room(need), self._room(need + size, base + size)
        if alone is None or extra is None:
            return False
        begin = max(begin, alone)
        return (start < begin + cycle.seconds[run] or start <= self.compute) and extra <= begin

    def _upload(self, run: int, order: list[int]) -> None:
        """List early uploads while the link would be idle during the run."""
        end = self.compute + self.cycle.seconds[run]
        while self.uploads:
            version = self.uploads[0]
            start = max(self.compute, self.to_host)
            if (
                start + self.cycle.offload_seconds[self.cycle.changed_by[version][0]] > end
                and start > self.compute
            ):
                return
            if not self.cycle.seconds[run]:
                return
            # The copy ends within this run, or the link is idle already.
            self.uploads.popleft()
            self._store(version, order)
            self.in_flight.add(version)

    def _after(self, run: int, order: list[int]) -> None:
        """Update the state after a run: changes begin versions, and weights leave.

        A weight that leaves is deleted, after a copy to the host if it needs one.
        """
        for version in self.begun.get(run, []):
            self.fresh[version] = False
            if self.cycle.intervals[self.first_of[version]].after != run:
                self.uploads.append(version)
        self.held += self.leaving.get(run, [])
        if self.ranks is None:
            self._release(order)

    def _release(self, order: list[int]) -> None:
        """Let go what has been held back for the sake of its rank."""
        ranks = self.ranks or {}
        for number in sorted(self.held, key=lambda a: ranks.get(self.cycle.intervals[a].weight, -1)):
            interval = self.cycle.intervals[number]
            version, size = interval.version, self.cycle.sizes[interval.weight]
            if version != FROZEN and not self.fresh[version]:
                if version in self.uploads:
                    self.uploads.remove(version)
                self._store(version, order)
                self.in_flight.add(version)
            # Until its copy has landed the weight's bytes are only promised.
            if version in self.in_flight:
                self.in_flight.discard(version)
                self.pending.append((size, self.stored[version]))
            else:
                self.used -= size
            self.offloaded.add(number)
        self.held.clear()

    def _store(self, version: int, order: list[int]) -> None:
        seconds = self.cycle.offload_seconds[self.cycle.changed_by[version][0]]
        self.to_host = self.stored[version] = max(self.compute, self.to_host) + seconds
        self.fresh[version] = True
        order.append(self.cycle.runs + version)

    def _stored_end(self, version: int) -> float:
        return 0.0 if version == FROZEN else self.stored[version]

    def _room(self, size: int, waited: int = 0) -> float | None:
        """Return when so many bytes are free besides the weights, None if never.

        waited: bytes for which another transfer or run has waited already.
        """
        # In list order, as the simulator claims pending deletes, whichever copy ends first.
        used, when, limit = self.used, 0.0, self.cycle.limit
        for freed, end in self.pending:
            if used + size <= limit:
                break
            used -= freed
            if not waited or (size > waited and used + waited < limit):
                when = max(when, end)
        return when if used + size <= limit else None

    def _pop(self, size: int) -> None:
        """Take what is missing from the oldest deletes; the rest of one stays pending for the next taker."""
        missing = self.used + size - self.cycle.limit
        while missing > 0:
            freed, end = self.pending.popleft()
            if freed > missing:
                self.pending.appendleft((freed - missing, end))
            self.used -= min(freed, missing)
            missing -= freed


def _prefetch_distances(
    cycle: Cycle, chosen: Sequence[int], ranks: Mapping[int, int] | None
) -> dict[int, int] | None:
    """Return per chosen interval by how many runs its prefetch may precede its use, in the order of need.

    By list order alone: as far as the memory goes that the others leave; None if that is too little.
    """
    runs = cycle.runs
    room = cycle.limit - sum(cycle.sizes)
    # Bytes that are free during each run if every chosen weight comes back just before its use.
    slack = [
        room - need + offloaded for need, offloaded in zip(cycle.need, cycle.offloaded(chosen), strict=True)
    ]
    if min(slack, default=0) < 0:
        return None
    distances: dict[int, int] = {}
    ahead = 0
    before = 0
    for number in _by_need(cycle, chosen, ranks):
        interval = cycle.intervals[number]
        size = cycle.sizes[interval.weight]
        furthest = (interval.before - interval.after - 1) % runs
        if distances:
            # Fetches are made in the order of need, so this one cannot start before the one before it.
            furthest = max(0, min(furthest, ahead + interval.before - before))
        distance = 0
        while distance < furthest and slack[(interval.before - distance - 1) % runs] >= size:
            distance += 1
            slack[(interval.before - distance) % runs] -= size
        distances[number] = distance
        ahead, before = distance, interval.before
    return distances


def _by_need(cycle: Cycle, chosen: Sequence[int], ranks: Mapping[int, int] | None) -> list[int]:
    """Sort intervals by the run that needs the weight; those needed at one instant by `ranks`, if given."""
    # Instants: runs that take no time between two others share one.
    busy = [*accumulate((seconds > 0.0 for seconds in cycle.seconds), initial=0)]

    def key(number: int) -> tuple[int, int, int, int]:
        interval = cycle.intervals[number]
        if ranks is None:
            return (interval.before, 0, 0, number)
        return (busy[interval.before], ranks.get(interval.weight, -1), interval.before, number)

    return sorted(chosen, key=key)
