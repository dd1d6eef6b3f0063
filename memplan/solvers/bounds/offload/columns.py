"""The columns of an offloading program (program.py), and sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Links, Machine
from ....planner.simulator.clock import Queue, lanes_of
from ....planner.simulator.footprint import Footprint
from ...milp.linear import ONE, ZERO, Constraint, Linear, column_sum, total
from ...milp.model import Model
from ...problem import OrderName
from ..residency.facts import Facts
from ..residency.order import Order, any_order, file_order
from .variants import BoundVariant, variants_of
from .windows import Windows

NEGLIGIBLE = 0.003
"""Share of the device's limit up to which the smallest tensors count no bytes, which lowers the bound."""


def _stays_below(graph: Graph, links: Links, variants: Sequence[Sequence[BoundVariant]]) -> list[int]:
    """Return the persistent tensors that may lie below the device for ever although no link leads there.

    Of those that every iteration needs on the device these are the ones that the host can send.
    """
    needed = {x for row in variants for x in frozenset.intersection(*(variant.device for variant in row))}
    found: list[int] = []
    for x in np.flatnonzero(graph.persistent).tolist():
        spread = x in graph.tensors.spread
        linked = links.peers is not None if spread else links.reach_host
        if not linked and (x not in needed or (links.h2d is not None and not spread)):
            found.append(x)
    return found


def _sizes(
    graph: Graph,
    variants: Sequence[Sequence[BoundVariant]],
    limit: int,
    stay_below: Sequence[int],
    merged: bool,
) -> tuple[list[int], list[int]]:
    """Return the bytes of the tensors that count, and per tensor the one that stands for it.

    A tensor that may be made in host memory, and so may lie there without a copy down, counts no bytes. Nor
    does one of which only shares on the peers are used, or one of `stay_below`.

    merged: the first of the tensors that the same operations touch in the same roles stands for all of them.
    """
    sizes = graph.tensors.bytes.copy()
    for modes in graph.operations.modes.values():
        for mode in modes:
            # Counting fewer bytes only lowers the bound: it stays one.
            sizes[list(mode.made_on_host)] = 0
    sizes[list(stay_below)] = 0
    whole = {x for row in variants for variant in row for x in variant.device | variant.writes}
    sizes[list(graph.tensors.spread - whole)] = 0
    order = np.argsort(sizes, kind="stable")
    # The smallest of all, as long as their sum is negligible.
    sizes[order[np.cumsum(sizes[order]) <= NEGLIGIBLE * limit]] = 0
    counted: list[int] = sizes.tolist()
    touching: list[list[tuple[int, int, int]]] = [[] for _ in counted]
    for operation, row in enumerate(variants):
        for number, variant in enumerate(row):
            for role, tensors in enumerate(
                (variant.device, variant.host, variant.writes, graph.mutate_lists[operation])
            ):
                for x in tensors:
                    touching[x].append((operation, number, role))
    first: dict[object, int] = {}
    stands, results = list(range(len(counted))), set(graph.results)
    for x, size in enumerate(counted):
        if merged and size:
            # Tensors that every operation touches in the same roles can be moved together: an average over
            # them is feasible too, so one column for the sum loses nothing.
            key = (
                tuple(touching[x]),
                bool(graph.persistent[x]),
                bool(graph.resident[x]),
                x in results,
                x in graph.tensors.stays,
                x if x in graph.tensors.spread else -1,  # the bytes that pass are rounded for each
            )
            one = first.setdefault(key, x)
            if one != x:
                counted[one] += size
                counted[x], stands[x] = 0, one
    return counted, stands


class OffloadColumns:
    """Columns of the offloading program, moment by moment, and sums over them.

    limit: device bytes.
    marks: the moments (windows.py), in their order, only of operations that always run on the device. The
        first is the start of the iteration, or that of the operation that surely begins it.
    order: of first runs.

    unit: what cost 1 stands for, in seconds.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        limit: int,
        marks: Sequence[int],
        order: OrderName = "file",
        whole: bool = False,
    ) -> None:
        footprint = Footprint(graph, machine.hierarchy)
        self.spread = graph.tensors.spread
        # the shares of weights and states never leave the device
        limit -= sum(footprint.shares[x] for x in self.spread if graph.persistent[x])
        self.graph, self.limit, self.whole = graph, max(1, limit), whole  # a byte more rules out no schedule
        links = machine.links
        assert machine.can_transfer
        self.reaches_host, self.lanes = links.reach_host, lanes_of(machine.hierarchy)
        host_links = (links.d2h, links.h2d) if links.reach_host else (None, None)
        self.links, self.peers = (*host_links, links.disk_write, links.disk_read), links.peers
        self.facts, self.model = Facts(graph), Model()
        count = len(graph.operations)
        sides: Order = file_order(graph) if order == "file" else any_order(self.facts.predecessors)
        self.iteration = Windows(sides, marks, count)
        self.windows = range(len(marks))
        self.exact, self.firsts = self.iteration.exact, self.iteration.firsts
        self.variants = [variants_of(graph, operation) for operation in range(count)]
        stay_below = _stays_below(graph, links, self.variants)
        self.sizes, self.stands = _sizes(graph, self.variants, self.limit, stay_below, merged=not whole)
        self.persistent: list[bool] = graph.persistent.tolist()
        self.batch = {
            x
            for x, there in enumerate(graph.resident.tolist())
            if there and not (self.persistent[x] and self.leaves(x))
        }
        below = {x for variants in self.variants for variant in variants for x in variant.host}
        self.read_below = {x for x in below if self.sizes[x] and self.leaves(x) and not graph.resident[x]}
        self.host = None if whole else self._host_limit(machine)
        self.unit = sum(min(variant.seconds for variant in variants) for variants in self.variants) or 1.0
        self.touched = [self._touched(operation) for operation in self.iteration.at]
        self.begun = [
            self.touched[s] - {*self.facts.inputs[mark // 2]} if mark % 2 == 0 else set[int]()
            for s, mark in enumerate(marks)
        ]
        self._add_times()
        self._add_lives()
        self._add_stocks()

    def _add_times(self) -> None:
        model = self.model
        sizes: list[int] = self.graph.tensors.bytes.tolist()  # of all: what is merged may take longer apart
        network = () if self.peers is None else (self.peers, self.peers.scatters)
        moves = sum(link.total_seconds(sizes) for link in (*self.links, *network) if link)
        runs = 2 * sum(max(variant.seconds for variant in variants) for variants in self.variants)
        # An upper bound for a window: everything runs and moves twice, one after the other.
        most = 2 * (moves + runs) / self.unit + 1.0
        self.seconds = [model.column(upper=most, cost=1.0) for _ in self.windows]
        self.variant = [
            {
                (s, number): model.column(integer=self.whole)
                for s in windows
                for number in range(len(variants))
            }
            if len(variants) * len(windows) > 1
            else {}
            for variants, windows in zip(self.variants, self.iteration.of, strict=True)
        ]

    def _add_lives(self) -> None:
        """Add columns for what may be recomputed in each window, or after each moment.

        Also collect the tensors that may be needed there.
        """
        facts, model = self.facts, self.model
        able = [
            not (self.whole or any(variant.on_host for variant in variants)) for variants in self.variants
        ]
        self.recomputed: list[dict[int, int]] = []
        self.alive: list[set[int]] = []
        repeats: list[list[int]] = []
        for s in self.windows:
            here, started = self.iteration.moment(s), self.iteration.started(s)
            may = facts.recomputable(here) if started else bytearray(len(self.variants))
            repeats.append([o for o in started if able[o] and may[o]])
            self.recomputed.append({o: model.column() for o in repeats[s] if s not in self.exact})
            made = {x for o in started for x in facts.outputs[o] if self.sizes[x]}
            self.alive.append({x for x in made if facts.used_after(x, here.side, may)})
        self.reruns = self._from_here_on(self.recomputed, repeats)

    def _from_here_on(
        self, inside: Sequence[dict[int, int]], wanted: Sequence[Iterable[int]]
    ) -> list[dict[int, int]]:
        """Add columns for what happens in window s or later, for each moment s, from those of each window.

        Only what is needed at a moment gets a column there.
        """
        found: list[dict[int, int]] = [{} for _ in inside]
        following: dict[int, int] = {}
        for s in reversed(range(len(inside))):
            for one in wanted[s]:
                if one in inside[s] and one in following:
                    found[s][one] = self.model.column()
                    parts = column_sum(inside[s][one], following[one])
                    self.model.add(parts >= column_sum(found[s][one]))  # (11)
                # The only part there is: no column of its own.
                elif one in inside[s] or one in following:
                    found[s][one] = inside[s].get(one, following.get(one, -1))
            following = found[s]
        return found

    def _host_limit(self, machine: Machine) -> int | None:
        """Return the host's capacity in bytes; None if everything fits.

        Without disks and operations on the CPU only pinned memory counts.
        """
        if self.spread:  # what is said of host memory counts no tensors on the peers
            return None
        on_cpu = any(variant.on_host for variants in self.variants for variant in variants)
        disk = machine.links.disk_write or machine.links.disk_read
        limit = machine.host_capacity if on_cpu or disk else machine.crossing_capacity
        # If all fits at once, the host limits nothing.
        return None if limit is None or sum(self.sizes) <= limit else max(1, limit)

    def _add_stocks(self) -> None:
        """Add the columns there, below, down and up: per moment or window, tensor -> column."""
        graph, facts, model = self.graph, self.facts, self.model
        self.movable = [
            x
            for x in range(len(self.sizes))
            if self.persistent[x]
            and self.sizes[x]
            and self.leaves(x)
            and (len(facts.uses[x]) or len(graph.mutators[x]))
        ]
        self.changes = {x: graph.mutators[x].tolist() for x in self.movable}
        self.there: list[dict[int, int]] = []
        self.below: list[dict[int, int]] = []
        self.down: list[dict[int, int]] = [{} for _ in self.windows]
        self.up: list[dict[int, int]] = [{} for _ in self.windows]
        for s in self.windows:
            tensors = [*self.alive[s], *self.movable]
            self.there.append({x: model.column() for x in tensors if x not in self.touched[s]})
            self.below.append({x: model.column() for x in tensors if self._may_lie_below(x, s)})
        for s in self.windows:
            for x in self.movable:
                self.up[s][x] = model.column()
                if x in self.spread:
                    continue
                if (self.changes[x] or self.host is not None) and not (
                    s in self.exact and self.changes_in(x, s)
                ):
                    self.down[s][x] = model.column()
            for x in self.lives_in(s):
                lasts = s + 1 < len(self.windows) or x in self.read_below
                if lasts and self.leaves(x) and self.complete_in(x) < s + (s not in self.exact):
                    self.down[s][x] = model.column()
                if x in self.below[s] and x not in self.spread:
                    self.up[s][x] = model.column()
        fixed = {x for x in self.movable if all(map(self.iteration.known, facts.uses[x]))}
        wanted = [set[int]().union(*self.up[s:]) - fixed for s in self.windows]
        self.returns = self._from_here_on(self.up, wanted)
        self._add_disk()

    def _add_disk(self) -> None:
        """Add the columns on_host, on_disk, written and read; none if all fits into host memory."""
        _down, _up, write, read = self.links
        moving = range(0 if self.host is None else len(self.windows))
        below = [sorted({*self.below[s], *self.movable}) for s in moving]
        varying = [{x for x in below[s] if write and not self.constant(x)} for s in moving]
        self.on_host = [{x: self.model.column() for x in here} for here in below]
        self.on_disk = [{x: self.model.column() for x in sorted(here)} for here in varying]
        self.read = [{x: self.model.column() for x in here} if read else {} for here in below]
        self.written = [
            {x: self.model.column() for x in sorted({*varying[(s + 1) % len(varying)]} & {*self.down[s]})}
            for s in moving
        ]

    def lives_in(self, s: int) -> Iterable[int]:
        """Return the tensors, not persistent, that exist in window s and that may be moved below then."""
        ends = self.alive[s + 1] if s + 1 < len(self.alive) else set[int]()
        made = {x for o in self.firsts[s] for x in self.facts.outputs[o]}
        return [*self.alive[s], *(x for x in made & (ends | self.read_below) if x not in self.alive[s])]

    def leaves(self, x: int) -> bool:
        """Tell whether a tensor may leave the device, and the machine has links for it."""
        if x in self.spread:
            return self.peers is not None
        return self.reaches_host and x not in self.graph.tensors.stays

    def complete_in(self, x: int) -> int:
        """Return the first window in which all that makes x may have run."""
        # A sum is complete when its last producer may have run at the earliest.
        return max(self.iteration.of[producer][0] for producer in self.facts.producers[x])

    def _may_lie_below(self, x: int, s: int) -> bool:
        if self.persistent[x]:
            return bool(self.changes[x]) and x not in self.spread
        return self.leaves(x) and self.complete_in(x) < s

    def constant(self, x: int) -> bool:
        """Tell whether a tensor lasts for iterations, and nothing that counts changes it."""
        return self.persistent[x] and not self.changes.get(x)

    def _touched(self, operation: int) -> set[int]:
        """Return the tensors that are on the device while the operation runs, in any execution variant."""
        if operation < 0:
            return set()
        variants = self.variants[operation]
        return {
            x
            for x in variants[0].device | variants[0].writes
            if all(x in w.device | w.writes for w in variants)
        }

    def column(self, columns: dict[int, int], x: int) -> Linear:
        return column_sum(columns.get(x))

    def is_there(self, x: int, s: int) -> Linear:
        if not self.sizes[x] or x in self.batch or x in self.touched[s]:
            return ONE
        return self.column(self.there[s], x)

    def is_below(self, x: int, s: int) -> Linear:
        if self.constant(x) or (x in self.spread and self.persistent[x]):
            return ONE
        return self.column(self.below[s], x)

    def is_on_disk(self, x: int, s: int) -> Linear:
        if self.constant(x):
            return ONE if self.links[3] else ZERO
        return self.column(self.on_disk[s], x)

    def first(self, operation: int, s: int, wanted: Iterable[int] | None = None) -> Linear:
        """Return the sum that is 1 if the operation runs for the first time in window s.

        wanted: the numbers of the execution variants that count; all by default.
        """
        numbers = list(range(len(self.variants[operation])) if wanted is None else wanted)
        if s not in self.iteration.of[operation] or not numbers:
            return ZERO
        if self.iteration.known(operation) and len(numbers) == len(self.variants[operation]):
            return ONE
        return column_sum(*(self.variant[operation][s, number] for number in numbers))

    def spans(self, operation: int, s: int) -> Iterable[range]:
        """Return the windows up to s in which the operation may run for the first time: all, and s alone."""
        # not a set: a range's hash, and so the order of the rows, differs from process to process
        return dict.fromkeys((range(self.iteration.of[operation][0], s + 1), range(s, s + 1)))

    def not_first(self, operation: int, inside: Iterable[int], wanted: Iterable[int] | None = None) -> Linear:
        """Return 1 − the sum that the operation first runs in these windows, in one of these variants."""
        numbers = None if wanted is None else list(wanted)
        return 1.0 - total(self.first(operation, s, numbers) for s in inside)

    def before(self, operation: int, s: int) -> Linear:
        """Return the sum that is 1 if the operation has run for the first time before moment s."""
        windows = self.iteration.of[operation]
        # It has run for the first time in any order considered.
        if windows[-1] < s:
            return ONE
        return total(self.first(operation, window) for window in windows if window < s)

    def chosen(self, operation: int, wanted: Iterable[int]) -> Linear:
        """Return the sum that is 1 if the operation's first run is in one of these variants, by number."""
        numbers = list(wanted)
        if len(numbers) == len(self.variants[operation]):
            return ONE
        return total(self.first(operation, s, numbers) for s in self.iteration.of[operation])

    def changed_below(self, x: int, s: int) -> Linear:
        """Return the sum that is 1 if x is changed below the device in window s."""
        changes = self.changes_in(x, s)
        return total(self.first(o, s, self.numbers(o, lambda variant: x in variant.host)) for o in changes)

    def changes_in(self, x: int, s: int) -> list[int]:
        """Return the operations that may change x in window s."""
        return [o for o in self.changes.get(x, ()) if s in self.iteration.of[o]]

    def numbers(self, operation: int, wanted: Callable[[BoundVariant], bool]) -> list[int]:
        return [number for number, variant in enumerate(self.variants[operation]) if wanted(variant)]

    def made_by(self, producer: int, s: int) -> Linear:
        """Return the sum that counts the producer's runs in window s."""
        return self.first(producer, s) + self.column(self.recomputed[s], producer)

    def come(self, x: int, s: int) -> Linear:
        return self.is_there(x, s) + self.column(self.up[s], x)

    def loads(self, s: int) -> Mapping[int, Linear]:
        """Return the seconds, over `unit`, for which copies of window s hold the lanes."""
        found: dict[int, list[tuple[int, float]]] = {}
        for link, moving in enumerate((self.down[s], self.up[s])):
            for x, column in moving.items():
                for lane, part in self.taken(x, link):
                    found.setdefault(lane, []).append((column, part * self.copy_seconds(x, link)))
        return {lane: Linear(terms) for lane, terms in found.items()}

    def load(self, moving: Mapping[int, int], link: int) -> Linear:
        """Return the seconds, over `unit`, that copies take on a link. moving: tensor -> column."""
        return Linear((column, self.copy_seconds(x, link)) for x, column in moving.items())

    def taken(self, x: int, link: int) -> Sequence[tuple[int, float]]:
        """Return the lanes that copies of a tensor on a link hold, and the parts of their seconds."""
        return self.lanes[Queue.COMM if x in self.spread else Queue.D2H + link]

    def copy_seconds(self, x: int, link: int) -> float:
        """Return the seconds of tensor x on one of the links, over `unit`.

        If it stands for several tensors, these are the fewest seconds that they take.
        """
        one, size = self.links[link], self.sizes[x]
        if x in self.spread:
            one = self.peers and (self.peers if link else self.peers.scatters)
        assert one
        is_alone = size == self.graph.tensors.bytes[x]
        return (one.seconds_added(size) if is_alone else one.least_seconds(size)) / self.unit

    def require(self, constraint: Constraint) -> None:
        """Add a row, unless the columns' limits imply it."""
        self.model.add(constraint, unless_implied=True)
