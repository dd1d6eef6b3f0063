"""Starts of the joint search: how much is recomputed, and which updates run on the host, by greedy
filling."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np

from ....graphs.graph import Graph, Phase
from ....graphs.machine import Machine, Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.schedule import DEFAULT_MODE, Schedule
from ...links import worth_moving
from ..layers.host_variants import variants_on_host
from .disk_spill import spill
from .drops import Drops
from .fill import fill, orders, send_all
from .lp_guide import LpGuide, guided
from .slots import Slots
from .state import State, StateFigures
from .timeline import ABSENT
from .update_order import late_order, late_updates

LOOK_AHEADS = (1.0, 1.5, 3.0)
RESERVES = (0.0, 1.0, 2.0, 3.0)
"""Bytes that early fetches leave free, in sizes of the largest tensor that can be offloaded."""

FIRST = ((0.25, 0.25, 0.0), (0.0, 0.0, 0.0), (0.5, 0.25, 0.5), (1.0, 0.25, 0.0), (1.0, 1.0, 0.0))
"""Shares tried first: of the bytes that may be dropped, of the updates that may run on the host, and of the
others that are among those on the host (`Starts.choice`)."""

WIDTHS = (0.25, 0.125, 0.0625, 0.03125)
"""Widths of the steps from there."""

LEVELS = 16
"""Number of shares of bytes for which the runs that recompute the tensors have slots of their own."""

NEGLIGIBLE = 2e-3
"""Share of the budget: tensors that take less than that all together never leave."""

ROOMS = (0.0, 2.0, 4.0)
"""Bytes that filling leaves free, in sizes of the largest tensor that can be offloaded."""


@dataclass(frozen=True)
class CoarseDecisions:
    """A choice of what is dropped and what runs on the host.

    dropped: tensors. on_host: operations that run in the variant that they have for the host.
    late: some of these updates take place at the end (update_order.py).
    """

    dropped: frozenset[int]
    on_host: frozenset[int]
    late: bool = True


@dataclass(frozen=True)
class Start:
    """A choice with the decisions found for it.

    residency: its decisions, without runs that are absent.
    """

    choice: CoarseDecisions
    outcome: StateFigures
    residency: Residency

    @property
    def worth(self) -> tuple[float, float]:
        """Return the rank of a start; less is better: bytes in excess, then seconds."""
        return self.outcome.excess, self.outcome.seconds


class Starts:
    """A search for the best starts.

    advised, best: of the choices that the program advises, and of the others that were tried.
    least: the smallest budget with which one of them holds, in bytes. leanest: a schedule within it.
    complete: no choice was left out because time was over. proceed: false once it is.
    tell: is called with the seconds of each choice that is the best of its kind so far.
    """

    def __init__(
        self,
        drops: Drops,
        machine: Machine,
        budget: int,
        proceed: Callable[[], bool],
        tell: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.drops, self.machine, self.budget, self.proceed, self.tell = drops, machine, budget, proceed, tell
        self.graph = graph = drops.graph
        self._updates, self._written = together(graph, host_modes(graph)), frozenset(written_modes(graph))
        self.modes = other_modes(graph)
        self.smallest = smallest_sizes(graph, machine, budget)
        runs = drops.runs
        self.slots = Slots(
            drops, runs, [self.choice(level / LEVELS, 0.0).dropped for level in range(1, LEVELS + 1)]
        )
        self._places = [(run[0], place) for run, place in zip(runs, self.slots.places, strict=True)]
        late = late_order(graph, runs, drops.movable & host_modes(graph).keys())
        self._late = {operation: len(self.slots.runs) + number for number, operation in enumerate(late)}
        self.state = State(graph, machine, budget, [*self.slots.runs, *((o, ABSENT) for o in late)])
        self.guide: LpGuide | None = None
        self.advised: Start | None = None
        self.best: Start | None = None
        self.least = inf
        self.leanest: Schedule | None = None
        self.complete = True
        self._tried: set[CoarseDecisions] = set()

    def search(self, seconds: float) -> None:
        """Search for the best choices.

        In this order: a first one, the advised ones, some shares, steps from the best of them that become
        smaller, and kinds of tensors; then shares with no update late. seconds: time limit for the advice.
        """
        self.attempt(self.choice(*FIRST[0]))
        self._take_advice(seconds)
        self._vary_shares(late=True)
        better = True
        while better:
            better = False
            for choice in self._by_kind():
                better |= self.attempt(choice)
        if self._late and self.proceed():
            # From starts of its own: `attempt` then compares these with each other alone.
            before, self.best = self.best, None
            self._vary_shares(late=False)
            self.best = min(filter(None, (before, self.best)), key=lambda start: start.worth, default=None)

    def _vary_shares(self, *, late: bool) -> None:
        """Try some shares, then steps from the best of them that become smaller."""
        best, below = FIRST[0] if self.best else (0.0, 0.0, 0.0), frozenset[int]()
        for written in dict.fromkeys((below, self._written)):
            for shares in FIRST:
                if self.attempt(self.choice(*shares, below=written, late=late)):
                    best, below = shares, written
        for width in WIDTHS:
            better = True
            while better:
                better = False
                for number, step in product(range(len(best)), (-width, width)):
                    # Coordinate descent in the shares, with smaller and smaller steps.
                    d, h, among = (share + step * (n == number) for n, share in enumerate(best))
                    inside = min(d, h, among) >= 0.0 and max(d, h, among) <= 1.0
                    if inside and self.attempt(self.choice(d, h, among, below, late=late)):
                        best, better = (d, h, among), True

    def _take_advice(self, seconds: float) -> None:
        """Try the choices that are advised, and keep the best of them apart from the best so far."""
        # `attempt` then compares the advised with each other alone.
        before, self.best = self.best, None
        try:
            places, over = self.slots.places, (lambda: not self.proceed())
            self.guide = guided(
                self.drops, self.machine, budget=self.budget, places=places, seconds=seconds, cancelled=over
            )
            if self.guide:
                self._tried.clear()  # what stays is chosen by its preference too from now on
                for choice in self.guide.choices(self._updates):
                    self.attempt(CoarseDecisions(*choice))
        finally:
            self.advised, self.best = self.best, before

    @property
    def found(self) -> list[Start]:
        """Return the best start of either kind; if both have the same choice, the better filling."""
        starts = sorted(filter(None, (self.best, self.advised)), key=lambda start: start.worth)
        return starts if len({start.choice for start in starts}) > 1 else starts[:1]

    @property
    def tried(self) -> int:
        return len(self._tried)

    def attempt(self, choice: CoarseDecisions) -> bool:
        """Try a choice, and tell whether it is the best so far."""
        if choice in self._tried:
            return False
        # Without any start the time limit waits for one.
        if self.best is not None and not self.proceed():
            self.complete = False
            return False
        self._tried.add(choice)
        start = self._worth(choice)
        if start is None or (self.best is not None and start.worth >= self.best.worth):
            return False
        self.best = start
        self.tell(start.outcome.seconds)
        return True

    def choice(
        self,
        dropped_share: float,
        host_share: float,
        among: float = 0.0,
        below: frozenset[int] = frozenset(),
        *,
        late: bool = True,
    ) -> CoarseDecisions:
        """Return the choice with these shares of bytes dropped and of updates on the host.

        The updates on the host are those of the last layers, whose weights are needed last, evenly mixed with
        others: the links are busy where updates run on the device.

        among: share of the other updates that these are mixed with.
        below: operations that write host memory, always included.
        """
        sizes, saved = self.graph.tensors.bytes, self.drops.saved
        most = dropped_share * float(sizes[saved].sum()) if saved else 0.0
        dropped, total = set[int](), 0.0
        for x in saved:
            if total >= most:
                break
            dropped.add(x)
            total += float(sizes[x])
        count = round(host_share * len(self._updates))
        mixed = count + round(among * (len(self._updates) - count))
        updates = [self._updates[number * mixed // count] for number in range(count)]
        return CoarseDecisions(frozenset(dropped), below.union(*updates), late and bool(updates))

    def _by_kind(self) -> Iterator[CoarseDecisions]:
        """Yield the best choice with all tensors of one kind dropped, then with none, largest kinds first."""
        for kind in kinds(self.drops.saved, self.graph):
            for more in (True, False):
                if self.best:
                    chosen = self.best.choice
                    dropped = chosen.dropped | kind if more else chosen.dropped - kind
                    yield replace(chosen, dropped=dropped)

    def _worth(self, choice: CoarseDecisions) -> Start | None:
        state = self.state
        state.forget()
        state.keep(list(state.offloaded))
        modes = dict.fromkeys(range(len(state.runs)), ABSENT)
        modes.update(
            (place, self.modes[o] if o in choice.on_host else DEFAULT_MODE) for o, place in self._places
        )
        modes.update(dict.fromkeys(self.slots.recomputed(choice.dropped), DEFAULT_MODE))
        state.switch(modes)
        if choice.late:
            self._order_updates(choice.on_host)
        self._send_all()
        if state.demand > self.budget:
            least = self._least()
            # Offloading all may be what the host has no room for: try with nothing offloaded.
            if least == inf and self.least == inf:
                state.keep(list(state.offloaded))
                least = self._least()
            self.least = min(self.least, least)
            return None
        outcome, offloaded = min(self._fillings(), key=lambda found: (found[0].excess, found[0].seconds))
        state.keep([where for where in state.offloaded if where not in offloaded])
        state.send_as(offloaded)
        if outcome.excess:  # the host is too small: perhaps nothing has to leave
            state.keep(list(offloaded))
            self.least = min(self.least, self._least())
            outcome = state.evaluate(LOOK_AHEADS[0])
        return None if outcome.excess else Start(choice, outcome, state.residency)

    def _order_updates(self, on_host: frozenset[int]) -> None:
        """Let some of the updates on the CPU take place at the end."""
        place, runs = dict(self._places), self.state.runs
        groups = [[place[o] for o in group] for group in self._updates if on_host.issuperset(group)]
        for position in late_updates(self.state, sorted(groups)):
            operation, mode = runs[position]
            if operation in self._late:
                self.state.switch({position: ABSENT, self._late[operation]: mode})

    def _send_all(self) -> None:
        """Offload all tensors from some size on: the largest such size that meets the budget, or the
        smallest."""
        state = self.state
        for smallest in self.smallest:
            state.smallest = smallest
            state.send_all()
            if state.demand <= self.budget:
                return

    def _fillings(self) -> Iterator[tuple[StateFigures, dict[TensorUse, int]]]:
        """Yield the outcomes of filling, with what is offloaded, for several orders, look-aheads and reserved
        bytes."""
        state = self.state
        everything = state.intervals
        largest = state.largest
        preferences = list(orders(state, everything))
        if self.guide:
            preferences.append(self.guide.preferred(state, everything))
        send_all(state, everything)
        curve, demand = state.curve, state.demand
        for order in preferences:
            for room in ROOMS:
                send_all(state, everything)
                fill(state, order, max(demand, self.budget - room * largest), curve)
                spill(state)
                yield best_timing(state), dict(state.offloaded)

    def _least(self) -> float:
        """Return the device bytes with which the state holds as it is; ∞ if another memory is too small."""
        state = self.state
        limits = state.instance.limits
        # With as much device memory as it needs, so that only other memories can be exceeded.
        before, limits[Memory.DEVICE] = limits[Memory.DEVICE], state.demand
        spill(state)
        outcome = state.evaluate(LOOK_AHEADS[0])
        holds = not outcome.excess
        if holds and state.demand < self.least:
            self.leanest = state.schedule(outcome)
        limits[Memory.DEVICE] = before
        return state.demand if holds else inf


def best_timing(state: State) -> StateFigures:
    """Return the best outcome of starting the fetches in several ways.

    The reserves are tried with the first look-ahead, the other look-aheads with the best reserve.
    """

    def best(outcomes: Iterable[StateFigures]) -> StateFigures:
        return min(outcomes, key=lambda outcome: (outcome.excess, outcome.seconds))

    first, *longer = LOOK_AHEADS
    found = best(state.evaluate(first, reserve * state.largest) for reserve in RESERVES)
    return best([found, *(state.evaluate(look_ahead, found.reserve) for look_ahead in longer)])


def smallest_sizes(graph: Graph, machine: Machine, budget: int) -> list[int]:
    """Return the least bytes of tensors that may leave, to be tried in order.

    Smaller ones leave only if the budget cannot be met without.
    """
    negligible = _smallest(graph, budget)
    return sorted({max(negligible, worth_moving(machine)), negligible, 1}, reverse=True)


def _smallest(graph: Graph, budget: int) -> int:
    """Return the bytes of a tensor worth moving: all smaller ones together are a small share of the
    budget."""
    sizes = np.sort(graph.tensors.bytes)
    negligible = int(np.searchsorted(np.cumsum(sizes), NEGLIGIBLE * budget))
    return max(1, int(sizes[negligible])) if negligible < len(sizes) else 1


def other_modes(graph: Graph) -> dict[int, int]:
    """Return per operation the variant in which it uses the host, if it has one to choose."""
    return host_modes(graph) | written_modes(graph)


def host_modes(graph: Graph) -> dict[int, int]:
    """Return per update with variants on the host the fastest of them; the last layers' updates first."""
    found: dict[int, int] = {}
    for operation in graph.operations.modes:
        variants = variants_on_host(graph, operation)
        if variants and graph.operations.phase[operation] == Phase.UPDATE:
            found[operation] = min(variants)[1]
    # In traced order the last layers' updates come first, as backward does.
    return dict(sorted(found.items()))


def together(graph: Graph, operations: Iterable[int]) -> list[list[int]]:
    """Group operations that change a tensor in common, such as updates of one weight by row blocks.

    On two sides of the bus one would wait for the tensor to come from the other.
    """
    changed, groups = dict[int, list[int]](), list[list[int]]()
    for operation in operations:
        group = next((changed[x] for x in graph.mutate_lists[operation] if x in changed), None)
        if group is None:
            groups.append(group := [])
        group.append(operation)
        changed.update(dict.fromkeys(graph.mutate_lists[operation], group))
    return groups


def written_modes(graph: Graph) -> dict[int, int]:
    """Return per backward operation its fastest variant that writes some of its results in host memory.

    Only variants count that produce all that the operation produces.
    """
    found: dict[int, int] = {}
    for operation, modes in graph.operations.modes.items():
        made: list[int] = graph.operations.writes[operation].tolist()
        variants = [
            (mode.time, number)
            for number, mode in enumerate(modes, start=1)
            if mode.writes_host and not mode.reads_host and len(mode.writes) == len(made)
        ]
        # Contributions to one sum must be in one memory.
        alone = all(len(graph.producers[x]) == 1 for x in made)
        if variants and alone and graph.operations.phase[operation] == Phase.BACKWARD:
            found[operation] = min(variants)[1]
    return found


def kinds(tensors: Iterable[int], graph: Graph) -> list[frozenset[int]]:
    """Group tensors whose names differ in numbers only, the kinds with most bytes first."""
    groups: dict[str, set[int]] = {}
    for x in tensors:
        groups.setdefault(re.sub(r"\d+", "#", graph.tensors.name[x]), set()).add(x)
    sizes = graph.tensors.bytes
    return sorted(
        map(frozenset, groups.values()), key=lambda group: (-int(sizes[list(group)].sum()), min(group))
    )
