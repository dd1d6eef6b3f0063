"""The residency program with prices on its memory rows: a minimum cut, with an answer in whole numbers.

With a price λ_t ≥ 0 on row (4) of each moment t (program.py), this is left to minimise:

    Σ_o seconds_o · reruns_o + Σ_t λ_t · (Σ_x size_x · kept_{x,t} − room_t)      subject to (1) to (3), (5)

For every λ its minimum is a bound (weak duality), and it is the capacity of a minimum cut. Nodes on the
source's side are 1:

    d_o      reruns_o
    u_{o,t}  recomputed_{o,t}; if o may run on either side of t: it runs after t, at first or recomputed
    n_{x,t}  x is needed at t; the source itself if it surely is

    arc                    capacity        says
    d_o → sink             seconds_o       the cost of recomputation
    u_{o,t} → d_o          ∞               (1), if o has surely run before t
    u_{c,t} → n_{x,t}      ∞               (3), and (2) if c may run after t: c reads x
    n_{x,t} → u_{p,t}      λ_t · size_x    kept_{x,t}, unless p makes x later; → sink if p can't
    u_{p,t} → u_{c,t}      ∞               (5), if p runs once: c must follow p

Of several p that make x, one that does not make it later is enough for the cost: an ∞ arc to each, from a
node between. In traced order nothing is lost: (1) to (4) are totally unimodular, and with the best prices
(prices.py) the bound is the program's in fractions. In any order it is a little lower: a recomputation costs
nothing at t if it could have been the first run, and (5) is left out between moments.

The bound is exact: costs and prices are turned into whole numbers, 2^k to the unit, each rounded so that the
bound becomes lower; the flow, and so the bound, has no other rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Indices
from ....graphs.arrays import Floats, Ints
from ....graphs.outward import float_below
from .facts import Facts
from .max_flow import MOST_BITS, SINK, SOURCE, UNLIMITED, Arcs, arcs_between, maximum_flow, minimum_cut
from .order import AFTER, BEFORE, OPEN, Moment

LOWER = 1.0 - 2.0**-49
"""Factor that makes a product of a few floats, each rounded to the nearest, surely not too large."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A minimum cut of the priced residency program.

    bound: no schedule costs less, in the network's units.
    excess: per moment, the kept bytes above the free memory.
    recomputed: per operation, whether it is recomputed.
    """

    bound: float
    excess: Floats
    recomputed: NDArray[np.bool_]


class CutPart(NamedTuple):
    """Nodes and arcs of one moment. Nodes are numbered from 2 + operations on.

    nodes: their number.
    tail, head: of each arc.
    size: bytes of the first arcs, whose capacity has the moment's price; that of the others is ∞.
    room: bytes available.
    rows: of each arc what it says: a kind and two numbers, as in `Kind`; only if they were requested.
    """

    nodes: int
    tail: Indices
    head: Indices
    size: Ints
    room: int
    rows: Indices | None = None


class Kind(IntEnum):
    """The meaning of an arc, in the graph's own terms."""

    NOTHING = 0
    NEEDS = 1
    """a tensor, and its producer that is recomputed unless it is kept; -1: it can't"""
    ASKS = 2
    """an operation, and an input that it needs"""
    LATE = 3
    """two operations, of which the second follows the first"""


def part_of(facts: Facts, moment: Moment, limit: int, labelled: bool = False) -> CutPart:
    """Return the nodes and arcs of a moment. labelled: with `rows`."""
    pairs = facts.pairs
    reads, writes = pairs.reads, pairs.writes
    operations, tensors = len(pairs.once), len(pairs.sizes)
    side = np.frombuffer(moment.side, np.uint8)
    before, after, open_ = side == BEFORE, side == AFTER, side == OPEN
    ended = np.zeros(operations, np.bool_)
    ended[pairs.ended[before[pairs.ended[:, 1]], 0]] = True
    may = before & ~pairs.once & ~ended
    made = writes[~after[writes[:, 1]]]
    counts = np.bincount(made[:, 0], minlength=tensors)
    live = counts > 0
    # Surely on the device at the moment, and so counted in its room.
    live[list(facts.touched(moment.operation))] = False
    surely = pairs.results.copy()
    # Read by an operation that runs after the moment in any order.
    surely[reads[after[reads[:, 1]], 0]] = True
    stuck = np.zeros(tensors, np.bool_)
    # Its producer has run and cannot be recomputed: what is needed is kept, by an arc to the sink.
    stuck[made[(before & ~may)[made[:, 1]], 0]] = True

    nodes = 2 + operations

    def numbered(chosen: NDArray[np.bool_], otherwise: int) -> Indices:
        nonlocal nodes
        numbers = np.full(len(chosen), otherwise, np.int32)
        count = int(chosen.sum())
        numbers[chosen] = nodes + np.arange(count)
        nodes += count
        return numbers

    recomputed = numbered(may, -1)
    makes = np.where(may, recomputed, numbered(open_, -1))
    needed = numbered(live & ~surely, SOURCE)
    keeps = numbered(live & ~stuck & (counts > 1), SINK)
    # With one producer no node between is needed.
    alone = made[(live & ~stuck & (counts == 1))[made[:, 0]]]
    keeps[alone[:, 0]] = makes[alone[:, 1]]
    kept = np.flatnonzero(live)
    several = made[(live & ~stuck & (counts > 1))[made[:, 0]]]
    reruns = np.flatnonzero(may)
    asked = reads[(live & ~surely)[reads[:, 0]] & (makes[reads[:, 1]] >= 0)]
    late = facts.order[(open_ & pairs.once)[facts.order[:, 0]] & open_[facts.order[:, 1]]]
    tails = [needed[kept], keeps[several[:, 0]], makes[asked[:, 1]], recomputed[reruns], makes[late[:, 0]]]
    heads = [keeps[kept], makes[several[:, 1]], needed[asked[:, 0]], 2 + reruns, makes[late[:, 1]]]
    room = limit - facts.least_bytes(moment.operation)
    tail, head = (np.concatenate(ends, dtype=np.int32) for ends in (tails, heads))
    rows = None
    if labelled:
        producer = np.full(tensors, -1, np.int32)
        producer[alone[:, 0]] = alone[:, 1]
        says = np.where(counts > 1, Kind.NOTHING, Kind.NEEDS)
        says[stuck] = Kind.NEEDS
        nothing = np.zeros(len(reruns), np.int32)
        ends = [
            (says[kept], kept, producer[kept]),
            (np.full(len(several), Kind.NEEDS), several[:, 0], several[:, 1]),
            (np.full(len(asked), Kind.ASKS), asked[:, 1], asked[:, 0]),
            (nothing, nothing, nothing),
            (np.full(len(late), Kind.LATE), late[:, 0], late[:, 1]),
        ]
        rows = np.concatenate([np.column_stack(columns) for columns in ends]).astype(np.int32)
    return CutPart(nodes - 2 - operations, tail, head, pairs.sizes[kept], room=room, rows=rows)


class Network:
    """The network of all moments, which share the nodes of recomputations.

    Costs are shares of `seconds`, bytes are shares of `limit`.

    weights: factors on the seconds of each operation; 1 for a bound.
    """

    def __init__(
        self,
        facts: Facts,
        parts: Sequence[CutPart],
        limit: int,
        seconds: float,
        weights: Floats | float = 1.0,
    ) -> None:
        operations = len(facts.once)
        self.parts, self.operations, self.limit = parts, operations, limit
        self.cost = np.array(facts.seconds) * weights / seconds
        self.room = np.array([part.room for part in parts]) / limit
        nodes, fill = 2 + operations, operations
        tails = [np.arange(2, nodes, dtype=np.int32)]
        heads = [np.full(operations, SINK, np.int32)]
        self.priced: list[slice] = []
        for part in parts:
            for columns, own in ((tails, part.tail), (heads, part.head)):
                # Nodes of operations, source and sink are shared by all moments; a moment's own are numbered
                # on.
                columns.append(np.where(own >= 2 + operations, own + (nodes - 2 - operations), own))
            self.priced.append(slice(fill, fill + len(part.size)))
            nodes, fill = nodes + part.nodes, fill + len(part.tail)
        self.tail, self.head = np.concatenate(tails), np.concatenate(heads)
        self.limited = np.zeros(len(self.tail), np.bool_)
        for arcs in (slice(operations), *self.priced):
            self.limited[arcs] = True
        self.arcs: Arcs = arcs_between(nodes, self.tail, self.head)

    def cut(self, prices: Floats) -> Cut:
        """Compute the minimum cut for some prices.

        prices: λ_t for each moment, at least 0.
        """
        capacities = self._capacities(prices)
        # The largest scale at which the sum of all capacities, and so any flow, still fits.
        bits = MOST_BITS - int(np.frexp(capacities.sum())[1])
        # capacities are rounded down, the rent that is subtracted up: rounding only makes the bound lower
        flow, source_side = minimum_cut(self.arcs, self._whole(np.floor(np.ldexp(capacities * LOWER, bits))))
        scale = Fraction(2) ** bits
        rooms = (Fraction(part.room, self.limit) for part in self.parts)
        rent = sum(
            ceil(Fraction(price) * room * scale) for price, room in zip(prices.tolist(), rooms, strict=True)
        )
        bound = float_below((flow - rent) / scale)
        return Cut(bound, self._kept(source_side) - self.room, source_side[2 : 2 + self.operations])

    def fits(self) -> bool:
        """Tell whether the memory of each moment would be enough if recomputation cost nothing.

        The test is exact, in bytes or in units of 2^k bytes, by which sizes and rooms are rounded down: what
        does not fit then, does not fit in bytes either.
        """
        bits = max(
            0,
            int(np.frexp(sum(float(part.size.sum(dtype=np.float64)) for part in self.parts))[1]) - MOST_BITS,
        )
        sizes = [part.size >> bits for part in self.parts]
        free = np.zeros(self.operations, np.int64)
        _flow, source_side = minimum_cut(self.arcs, self._whole(np.concatenate([free, *sizes])))
        return all(
            int(size[chosen].sum()) <= part.room >> bits
            for part, size, chosen in zip(self.parts, sizes, self._cut_arcs(source_side), strict=True)
        )

    def flows(self, prices: Floats, free: bool = False) -> tuple[int, list[Ints]]:
        """Return the flow through each moment's arcs, and the bits of the scale, as in `cut`.

        free: recomputation costs nothing.
        """
        capacities = self._capacities(prices)
        capacities[: self.operations] *= not free
        bits = MOST_BITS - int(np.frexp(capacities.sum())[1])
        flow = maximum_flow(self.arcs, self._whole(np.floor(np.ldexp(capacities * LOWER, bits))))
        return bits, [
            flow[arcs.start : arcs.start + len(part.tail)]
            for arcs, part in zip(self.priced, self.parts, strict=True)
        ]

    def _whole(self, capacities: Floats | Ints) -> Ints:
        """Return the capacities of all arcs. capacities: whole numbers, of the limited arcs."""
        whole = np.full(len(self.tail), UNLIMITED)
        whole[self.limited] = capacities
        return whole

    def _capacities(self, prices: Floats) -> Floats:
        """Return the capacities of the limited arcs: those of the operations, then the priced ones."""
        priced = (
            part.size / self.limit * price for part, price in zip(self.parts, prices.tolist(), strict=True)
        )
        return np.concatenate([self.cost, *priced])

    def _cut_arcs(self, source_side: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Return per moment which of its priced arcs the cut goes through."""
        return [source_side[self.tail[arcs]] & ~source_side[self.head[arcs]] for arcs in self.priced]

    def _kept(self, source_side: NDArray[np.bool_]) -> Floats:
        """Return per moment what the cut keeps, as a share of the limit."""
        cut = zip(self.parts, self._cut_arcs(source_side), strict=True)
        return np.array([float((part.size[chosen] / self.limit).sum()) for part, chosen in cut])
