"""The residency program with its memory rows priced: a minimum cut, with an answer in whole numbers.

With a price λ_t ≥ 0 on row (4) of each moment t (program.py), this is left to minimise:

    Σ_o seconds_o · reruns_o + Σ_t λ_t · (Σ_x size_x · kept_{x,t} − room_t)      subject to (1) to (3), (5)

For every λ its minimum is a bound (weak duality), and it is the capacity of a minimum cut. Nodes on the
source's side are 1:

    d_o      reruns_o
    u_{o,t}  recomputed_{o,t}; where o may run on either side of t: it runs after t, at first or again
    n_{x,t}  x is needed at t; the source itself where it surely is

    arc                    capacity        says
    d_o → sink             seconds_o       the cost of running again
    u_{o,t} → d_o          ∞               (1), where o has surely run before t
    u_{c,t} → n_{x,t}      ∞               (3), and (2) where c may run after t: c reads x
    n_{x,t} → u_{p,t}      λ_t · size_x    kept_{x,t}, unless p makes x later; → sink where p can't
    u_{p,t} → u_{c,t}      ∞               (5), where p runs once: c must follow p

Of several p that make x, one that does not make it later is enough for the cost: an ∞ arc to each, from a
node between. In the file's order nothing is lost: (1) to (4) are totally unimodular, and with the best prices
(prices.py) the bound is the program's in fractions. In any order it is a little lower: running again costs
nothing at t where it could have been the first run, and (5) is left out between moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Adjacency
from ....graphs.arrays import Floats, Ints
from .facts import Facts
from .max_flow import SINK, SOURCE, Arcs, arcs_between, minimum_cut
from .order import AFTER, BEFORE, OPEN, Moment

ALWAYS = -1
"""In place of a moment: the capacity has no price."""

FITTING = 1e-9
"""An excess over the limit, as a part of it, that may be rounding."""

ROUNDING = 1e-11
"""The bound is lowered by this much of the terms it is summed from: flows are sums of very many."""


@dataclass(frozen=True, eq=False)
class Cut:
    """bound: no schedule costs less, in the network's units. excess: per moment, what is kept above the room.
    again: per operation, it runs again."""

    bound: float
    excess: Floats
    again: NDArray[np.bool_]


class Pairs:
    """The edges of a graph as columns. Tensors that stay on the device, or have no bytes, have none.

    reads, writes: (tensor, operation). ended: (operation, a change in place after which it can't run again).
    order: (operation, one that must run behind it).
    """

    def __init__(self, facts: Facts) -> None:
        edges = facts.edges
        self.facts, self.sizes, self.results = facts, edges.sizes, edges.results
        counts = ~facts.graph.resident & (self.sizes > 0)
        reads = _columns(Adjacency(edges.use_start, edges.uses))
        writes = _columns(Adjacency(edges.producer_start, edges.producers))
        self.reads, self.writes = reads[counts[reads[:, 0]]], writes[counts[writes[:, 0]]]
        ended = [(o, change) for o, row in facts.ended_by.items() for change in row]
        self.ended = np.array(ended, np.int64).reshape(-1, 2)
        self.once = np.array(facts.once, np.bool_)

    @cached_property
    def order(self) -> Ints:
        return _columns(Adjacency.of(self.facts.predecessors))[:, ::-1]


def _columns(rows: Adjacency) -> Ints:
    """(row, entry) for each entry."""
    return np.column_stack([rows.rows(), rows.columns]).astype(np.int64)


class Part(NamedTuple):
    """The nodes and arcs of one moment. Nodes are numbered from 2 + operations on; `nodes` of them.

    tail, head, size: of each arc; size: bytes, which have the moment's price, ∞ without one. room: bytes.
    """

    nodes: int
    tail: Ints
    head: Ints
    size: Floats
    room: int


def part_of(pairs: Pairs, moment: Moment, limit: int) -> Part:
    facts, (reads, writes) = pairs.facts, (pairs.reads, pairs.writes)
    operations, tensors = len(pairs.once), len(pairs.sizes)
    side = np.frombuffer(moment.side, np.uint8)
    before, after, open_ = side == BEFORE, side == AFTER, side == OPEN
    ended = np.zeros(operations, np.bool_)
    ended[pairs.ended[before[pairs.ended[:, 1]], 0]] = True
    may = before & ~pairs.once & ~ended
    made = writes[~after[writes[:, 1]]]
    counts = np.bincount(made[:, 0], minlength=tensors)
    live = counts > 0
    live[list(facts.touched(moment.operation))] = False
    surely = pairs.results.copy()
    surely[reads[after[reads[:, 1]], 0]] = True
    stuck = np.zeros(tensors, np.bool_)
    stuck[made[(before & ~may)[made[:, 1]], 0]] = True

    nodes = 2 + operations

    def numbered(chosen: NDArray[np.bool_], otherwise: int) -> Ints:
        nonlocal nodes
        numbers = np.full(len(chosen), otherwise)
        count = int(chosen.sum())
        numbers[chosen] = nodes + np.arange(count)
        nodes += count
        return numbers

    again = numbered(may, -1)
    makes = np.where(may, again, numbered(open_, -1))
    needed = numbered(live & ~surely, SOURCE)
    keeps = numbered(live & ~stuck & (counts > 1), SINK)
    alone = made[(live & ~stuck & (counts == 1))[made[:, 0]]]
    keeps[alone[:, 0]] = makes[alone[:, 1]]
    kept = np.flatnonzero(live)
    several = made[(live & ~stuck & (counts > 1))[made[:, 0]]]
    reruns = np.flatnonzero(may)
    asked = reads[(live & ~surely)[reads[:, 0]] & (makes[reads[:, 1]] >= 0)]
    late = pairs.order[(open_ & pairs.once)[pairs.order[:, 0]] & open_[pairs.order[:, 1]]]
    tails = [needed[kept], keeps[several[:, 0]], makes[asked[:, 1]], again[reruns], makes[late[:, 0]]]
    heads = [keeps[kept], makes[several[:, 1]], needed[asked[:, 0]], 2 + reruns, makes[late[:, 1]]]
    free = np.full(sum(map(len, tails[1:])), inf)
    sizes = np.concatenate([pairs.sizes[kept], free])
    room = limit - facts.least_bytes(moment.operation)
    return Part(nodes - 2 - operations, np.concatenate(tails), np.concatenate(heads), sizes, room)


class Network:
    """Moments side by side; what runs again is common to all. Costs are parts of `seconds`, bytes of
    `limit`. weights: of the seconds of each operation; 1 for a bound."""

    def __init__(
        self,
        pairs: Pairs,
        parts: Sequence[Part],
        limit: int,
        seconds: float,
        weights: Floats | float = 1.0,
    ) -> None:
        operations = len(pairs.once)
        cost = np.array(pairs.facts.seconds) * weights / seconds
        reruns = 2 + np.arange(operations)
        tails, heads, moments = [reruns], [np.full(operations, SINK)], [np.full(operations, ALWAYS)]
        capacities = [cost]
        nodes = 2 + operations
        for number, part in enumerate(parts):
            shift = nodes - 2 - operations
            tails.append(np.where(part.tail >= 2 + operations, part.tail + shift, part.tail))
            heads.append(np.where(part.head >= 2 + operations, part.head + shift, part.head))
            moments.append(np.where(part.size < inf, number, ALWAYS))
            capacities.append(part.size / limit)
            nodes += part.nodes
        self.tail, self.head = np.concatenate(tails), np.concatenate(heads)
        self.moment, self.capacity = np.concatenate(moments), np.concatenate(capacities)
        self.arcs: Arcs = arcs_between(nodes, self.tail, self.head)
        self.parts, self.operations = parts, operations
        self.room = np.array([part.room for part in parts]) / limit

    def cut(self, prices: Floats) -> Cut:
        """prices: λ_t for each moment, at least 0."""
        priced = self.moment != ALWAYS
        capacities = self.capacity.copy()
        capacities[priced] *= prices[self.moment[priced]]
        flow, ours = minimum_cut(self.arcs, capacities)
        rent = float(prices @ self.room)
        bound = flow - rent - ROUNDING * (flow + float(prices @ np.abs(self.room)))
        return Cut(bound, self._kept(ours) - self.room, ours[2 : 2 + self.operations])

    def fits(self) -> bool:
        """Each moment's memory would do, if running again cost nothing."""
        capacities = self.capacity.copy()
        capacities[: self.operations] = 0.0
        _flow, ours = minimum_cut(self.arcs, capacities)
        return bool((self._kept(ours) <= self.room + FITTING).all())

    def _kept(self, ours: NDArray[np.bool_]) -> Floats:
        cut = (self.moment != ALWAYS) & ours[self.tail] & ~ours[self.head]
        return np.bincount(self.moment[cut], self.capacity[cut], len(self.parts)).astype(np.float64)
