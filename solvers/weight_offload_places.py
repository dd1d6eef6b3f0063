"""When the transfers stand: each at its earliest time, in an order fixed beforehand (Algorithm 2).

Fetches in the order in which they are needed; copies to the host in the order in which the weights change,
those of weights that leave only later (an early upload, the paper's waiting list) whenever the link would be
idle. A transfer stands before the run during which it can start. A fetch must fit from there up to its use,
by list order, and must not delay the run before which it stands.

The paper starts at B_L and tries every cut of the cycle: what has been moved before. Here the cycle is
played, turn after turn, until a turn places what the one before placed: the cut that the rules lead to.
Linear in the runs and transfers of the turns played.

Slips of the printed algorithm, corrected: it compares a time with a size (|w| / β is meant); a weight that is
on the host already leaves after its forward and the end of its upload; "earliest time feasible" means up to
the use; uploads on the waiting list may also stand before forward runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .weight_offload_cycle import FROZEN, Cycle

_TURNS = 10


def greedy_order(cycle: Cycle, chosen: Sequence[int], early: bool = True) -> list[int] | None:
    """The order (weight_offload_replay.py) of one turn, None where no turn repeats or the limit is passed.

    early: upload weights before they leave where the link is idle.
    """
    leads = _leads(cycle, chosen)
    if leads is None:
        return None
    line = _Line(cycle, leads, early)
    last: list[int] = []
    for _ in range(_TURNS):
        order = line.turn()
        if order is None:
            return None
        if order == last:
            break
        last = order
    tokens = {cycle.runs + cycle.absences[a].version for a in chosen if cycle.absences[a].version != FROZEN}
    fetched = {cycle.runs + len(cycle.changed_by) + a for a in chosen}
    return last if sorted(last) == sorted({*range(cycle.runs), *tokens, *fetched}) else None


def _leads(cycle: Cycle, chosen: Sequence[int]) -> dict[int, int] | None:
    """Per chosen absence, by how many runs its fetch may stand ahead of its use, in the order of need."""
    runs = cycle.runs
    total = sum(cycle.sizes)
    slack = [cycle.limit - need - total for need in cycle.need]
    for number in chosen:
        for stretch in cycle.covered(cycle.absences[number]):
            for run in stretch:
                slack[run] += cycle.sizes[cycle.absences[number].weight]
    if min(slack) < 0:
        return None
    leads: dict[int, int] = {}
    ahead = 0
    before = 0
    for number in sorted(chosen, key=lambda number: (cycle.absences[number].before, number)):
        absence = cycle.absences[number]
        size = cycle.sizes[absence.weight]
        furthest = (absence.before - absence.after - 1) % runs
        if leads:
            furthest = min(furthest, ahead + absence.before - before)
        lead = 0
        while lead < furthest and slack[(absence.before - lead - 1) % runs] >= size:
            lead += 1
            slack[(absence.before - lead) % runs] -= size
        leads[number] = lead
        ahead, before = lead, absence.before
    return leads


@dataclass
class _Line:
    """The queues as the turns go by. fetches: the absences in order of need; `following` is the place of the
    next. used: bytes of weights on the device, those of pending deletes included."""

    cycle: Cycle
    leads: dict[int, int]
    early: bool
    compute: float = 0.0
    to_host: float = 0.0
    to_device: float = 0.0
    used: int = 0
    following: int = 0
    pending: deque[tuple[int, float]] = field(default_factory=deque[tuple[int, float]])
    uploads: deque[int] = field(default_factory=deque[int])

    def __post_init__(self) -> None:
        cycle = self.cycle
        self.fetches = list(self.leads)
        self.away: set[int] = set()
        self.fetched = dict.fromkeys(self.leads, 0.0)
        self.stored = [0.0] * len(cycle.changed_by)
        self.fresh = [True] * len(cycle.changed_by)
        self.in_flight: set[int] = set()
        self.leaving: dict[int, list[int]] = {}
        self.coming: dict[int, list[int]] = {}
        self.begun: dict[int, list[int]] = {}
        self.first_of: dict[int, int] = {}
        for number in self.leads:
            absence = cycle.absences[number]
            self.leaving.setdefault(absence.after, []).append(number)
            self.coming.setdefault(absence.before, []).append(number)
            if absence.version != FROZEN:
                self._count_version(number)
            if absence.before <= absence.after:
                self.away.add(number)
        self.used = sum(cycle.sizes) - sum(cycle.sizes[cycle.absences[a].weight] for a in self.away)

    def _count_version(self, number: int) -> None:
        """The absence of each version that begins first."""
        absence = self.cycle.absences[number]
        run = self.cycle.changed_by[absence.version][1]
        runs = self.cycle.runs
        first = self.first_of.get(absence.version)
        if first is None:
            self.begun.setdefault(run, []).append(absence.version)
        if first is None or (absence.after - run) % runs < (self.cycle.absences[first].after - run) % runs:
            self.first_of[absence.version] = number

    def turn(self) -> list[int] | None:
        """What stands in the list during one turn; None where a run does not fit."""
        order: list[int] = []
        base = self.cycle.idle
        for run in range(self.cycle.runs):
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
        return order

    def _fetch(self, run: int, base: int, order: list[int]) -> bool:
        """List the fetches that stand before the run; false where one that it needs does not fit."""
        cycle = self.cycle
        while self.fetches:
            number = self.fetches[self.following]
            absence = cycle.absences[number]
            if number not in self.away:
                return True
            size = cycle.sizes[absence.weight]
            room = self._room(base + size)
            distance = (absence.before - run) % cycle.runs
            if distance:
                if distance > self.leads[number] or room is None:
                    return True
                start = max(self.compute, self.to_device, room, self._stored_end(absence.version))
                if not self._worthwhile(run, base, size, start):
                    return True
            elif room is None:
                return False
            assert room is not None
            start = max(self.compute, self.to_device, room, self._stored_end(absence.version))
            self._pop(base + size)
            self.used += size
            self.to_device = self.fetched[number] = start + cycle.down[absence.weight]
            self.away.discard(number)
            self.following = (self.following + 1) % len(self.fetches)
            order.append(cycle.runs + len(cycle.changed_by) + number)
        return True

    def _worthwhile(self, run: int, base: int, size: int, start: float) -> bool:
        """A fetch that can start at `start` starts before the run ends, and does not delay it."""
        cycle = self.cycle
        begin = max([self.compute, *(self.fetched[a] for a in self.coming.get(run, []))])
        alone, beside = self._room(cycle.need[run]), self._room(cycle.need[run] + size)
        if alone is None or beside is None:
            return False
        begin = max(begin, alone)
        return (start < begin + cycle.seconds[run] or start <= self.compute) and beside <= begin

    def _upload(self, run: int, order: list[int]) -> None:
        """Early uploads while the link would be idle during the run."""
        end = self.compute + self.cycle.seconds[run]
        while self.early and self.uploads:
            version = self.uploads[0]
            start = max(self.compute, self.to_host)
            if start + self.cycle.up[self.cycle.changed_by[version][0]] > end and start > self.compute:
                return
            if not self.cycle.seconds[run]:
                return
            self.uploads.popleft()
            self._store(version, order)
            self.in_flight.add(version)

    def _after(self, run: int, order: list[int]) -> None:
        """What changes begins a version; what leaves is deleted, copied to the host first where need be."""
        for version in self.begun.get(run, []):
            self.fresh[version] = False
            if self.cycle.absences[self.first_of[version]].after != run:
                self.uploads.append(version)
        for number in self.leaving.get(run, []):
            absence = self.cycle.absences[number]
            version, size = absence.version, self.cycle.sizes[absence.weight]
            if version != FROZEN and not self.fresh[version]:
                if version in self.uploads:
                    self.uploads.remove(version)
                self._store(version, order)
                self.in_flight.add(version)
            if version in self.in_flight:
                self.in_flight.discard(version)
                self.pending.append((size, self.stored[version]))
            else:
                self.used -= size
            self.away.add(number)

    def _store(self, version: int, order: list[int]) -> None:
        seconds = self.cycle.up[self.cycle.changed_by[version][0]]
        self.to_host = self.stored[version] = max(self.compute, self.to_host) + seconds
        self.fresh[version] = True
        order.append(self.cycle.runs + version)

    def _stored_end(self, version: int) -> float:
        return 0.0 if version == FROZEN else self.stored[version]

    def _room(self, size: int) -> float | None:
        """When so many bytes beside the weights are there, None if never."""
        used, when = self.used, 0.0
        for freed, end in self.pending:
            if used + size <= self.cycle.limit:
                break
            used -= freed
            when = max(when, end)
        return when if used + size <= self.cycle.limit else None

    def _pop(self, size: int) -> None:
        while self.used + size > self.cycle.limit:
            self.used -= self.pending.popleft()[0]
