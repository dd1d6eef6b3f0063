"""The choice of regions and pieces: which, so that no operation needs more than a plan may take.

A plan can drop and move what waits, so the least that it takes is what its largest operation needs while it
runs. As long as some operation needs more than is wanted, the tensors that it reads and makes are tried as
seeds of regions, along each of their dimensions, and the region that needs the least is taken, in as few
pieces as will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from ...devices.measuring.measure import Measurement
from ...graphs.graph import Kind, Phase
from ...program.program import Program
from .forms import without_forms
from .growth import Uses, regions_at
from .memory import piece_bytes
from .region import Region
from .rows import Along
from .split import Cut, Split, outputs_of, split

LARGE = 4
"""Divisor of the bytes of a region's seed: a tensor with more than the result is large."""

MOST_PIECES = 64

WORTH = 0.9
"""Share of an operation's bytes that a region must get by with, to be worth it."""

_SEEDS = 3
"""Number of tensors of an operation that are tried as seeds, the largest first."""

_FEW = 16
"""Number of operations of a region up to which a smaller one needs no less."""

_STEPS = range(1, 7)
"""Numbers of steps over which larger regions are grown too: within them nothing is recomputed, so what is
around one layer may need less than what is around all."""


@dataclass
class Choice:
    """Regions that are chosen so far, and what is known of the program.

    measured: costs of the program's operations, in order.
    exact: tells whether regions in pieces make the bits of the whole, see `Exactness`; None if they need not.
    """

    program: Program
    measured: Sequence[Measurement]
    exact: Callable[[Split], bool] | None = None
    cuts: list[Cut] = field(default_factory=list[Cut])

    def __post_init__(self) -> None:
        self.program = without_forms(self.program)
        self._uses = Uses(self.program, exact=self.exact is not None)
        operations = self.program.operations
        self._workspace = {
            i: max(0, one.peak_bytes - sum(self.program.storages[x].bytes for x in operations[i].writes))
            for i, one in enumerate(self.measured)
        }
        shapes = (self.program.values[value].shape for value in self.program.inputs.values())
        self._samples = sorted({shape[0] for shape in shapes if shape})
        self._stuck: set[int] = set()
        self._known: dict[int, list[list[Region]]] = {}
        self._outputs: dict[Region, tuple[int, ...]] = {}
        self._needed: dict[Cut, int] = {}

    def within(self, goal: int) -> Split | None:
        """Return the program of which no operation needs more than the goal, or than one that does not split;
        None if it has no regions.

        goal: bytes besides those that are there all the time. Later goals are smaller.
        """
        while True:
            most, worst = max(self._sizes())
            if most <= goal or worst in self._stuck:
                break
            cut = self._cut_of(worst)
            better = None if cut is None else self._more_pieces(cut, goal)
            better = better or self._region(worst, goal)
            if better is None:
                # No plan needs less than this operation, so splitting others gains nothing.
                self._stuck.update([worst] if cut is None else cut.region.members)
                break
            self.cuts = better
        return split(self.program, self.cuts) if self.cuts else None

    @property
    def largest(self) -> int:
        """Return what the operation or region needs that needs the most, in bytes."""
        return max(size for size, _operation in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        """Return what each operation needs, alone or in its region."""
        inside = {i: cut for cut in self.cuts for i in cut.region.members}
        return [
            (self._needs(cut) if (cut := inside.get(i)) else self.footprint(i), i)
            for i, operation in enumerate(self.program.operations)
            if operation.phase != Phase.UPDATE
        ]

    def _cut_of(self, operation: int) -> Cut | None:
        return next((cut for cut in self.cuts if operation in cut.region.members), None)

    def footprint(self, operation: int) -> int:
        """Return the bytes of what an operation reads and makes, without what is there all the time."""
        one = self.program.operations[operation]
        made = sum(self.program.storages[x].bytes for x in one.writes)
        return self._read(one.reads) + max(made, self.measured[operation].peak_bytes)

    def _read(self, storages: Sequence[int]) -> int:
        """Return the bytes of those that are not there all the time."""
        known = (self.program.storages[x] for x in dict.fromkeys(storages))
        return sum(one.bytes for one in known if one.kind >= Kind.ACTIVATION)

    def _needs(self, cut: Cut) -> int:
        if cut not in self._needed:
            values = self.program.values
            read = self._read([values[value].storage for value in cut.region.inputs])
            self._needed[cut] = read + self.peak_bytes(cut)
        return self._needed[cut]

    def peak_bytes(self, cut: Cut) -> int:
        """Return the bytes that a region takes above its inputs."""
        rows = cut.region.rows_of_piece(cut.pieces)
        assert rows is not None
        return piece_bytes(cut.region, self._outputs[cut.region], rows, self._workspace)

    def _more_pieces(self, cut: Cut, goal: int) -> list[Cut] | None:
        """Return the cuts with more pieces of one."""
        now = self._needs(cut)
        for pieces in counts(cut.region, above=cut.pieces):
            more = Cut(cut.region, pieces)
            cuts = [more if one is cut else one for one in self.cuts]
            # Within the goal, or less by 5 %: each round must gain something, so the loop ends.
            if self._needs(more) < min(now, max(goal, 0.95 * now)) and self._runs(cuts):
                return cuts
        return None

    def _runs(self, cuts: Sequence[Cut]) -> bool:
        """Tell whether the program runs with these regions, with the bits of the whole if it has to."""
        made = split(self.program, cuts)
        return made is not None and (self.exact is None or self.exact(made))

    def _region(self, operation: int, goal: int) -> list[Cut] | None:
        """Return the cuts with regions around an operation, instead of those that share operations with them.

        Of several ways that are within the goal, the one whose regions read and make the least is taken: what
        they read and make exists as a whole.
        """
        cut = self._cut_of(operation)
        before = self.footprint(operation) if cut is None else self._needs(cut)
        best: tuple[tuple[int, int, int], list[Cut]] | None = None
        for way, cuts in self._cuts_of_ways(operation, goal):
            members = {i for region in way for i in region.members}
            others = [cut for cut in self.cuts if members.isdisjoint(cut.region.members)]
            # Operations whose region is given up run whole.
            alone = {i for cut in self.cuts for i in cut.region.members} - members
            alone -= {i for cut in others for i in cut.region.members}
            needs = max((*map(self._needs, cuts), *map(self.footprint, alone)))
            # Below the goal less is no better: then what exists as a whole counts, then the pieces.
            key = (max(needs, goal), sum(map(self._around, way)), sum(cut.pieces for cut in cuts))
            better = needs <= WORTH * before and (best is None or key < best[0])
            if better and self._runs([*others, *cuts]):
                best = (key, [*others, *cuts])
        return None if best is None else best[1]

    def _cuts_of_ways(self, operation: int, goal: int) -> Iterator[tuple[list[Region], list[Cut]]]:
        """Yield the ways that have an operation, each in pieces; several times if not all have equal bits."""
        for way in self._ways(operation):
            if any(operation in region.members for region in way):
                cuts = [cut for region in way if (cut := self._fewest(region, goal)) is not None]
                if len(cuts) == len(way):
                    yield way, cuts
                for pieces in counts(way[0]) if self.exact is not None else ():
                    if all(region.rows_of_piece(pieces) is not None for region in way):
                        yield way, [Cut(region, pieces) for region in way]

    def _around(self, region: Region) -> int:
        """Return the bytes of what a region reads and makes."""
        values = self.program.values
        return self._read([values[value].storage for value in (*region.inputs, *self._outputs[region])])

    def _fewest(self, region: Region, goal: int) -> Cut | None:
        """Return the region in the fewest pieces within the goal, else in those that need the least."""
        cuts = [Cut(region, pieces) for pieces in counts(region)]
        found = next((cut for cut in cuts if self._needs(cut) <= goal), None)
        return found or min(cuts, key=self._needs, default=None)

    def _ways(self, operation: int) -> list[list[Region]]:
        """Return the regions that an operation may be in, each with the others that come with it."""
        if operation not in self._known:
            found: dict[object, list[Region]] = {}
            for value, along in self._starts(operation):
                for way in self._grown(operation, value, along):
                    found.setdefault(tuple(one.key for one in way), way)
            self._known[operation] = [*found.values()]
        return self._known[operation]

    def _grown(self, operation: int, value: int, along: Along) -> Iterator[list[Region]]:
        """Yield regions around a tensor: as large as can be; if these are large also smaller ones, grown as
        long as what the operation needs falls.
        """
        size = self.program.storages[self.program.values[value].storage].bytes

        def ways(steps: int | None) -> list[list[Region]]:
            found = [*regions_at(self._uses, value, along, size // LARGE + 1, steps)]
            for way in found:
                self._outputs |= zip(way, outputs_of(self.program, way), strict=True)
            return found

        yield from (all_of_it := ways(None))
        if max((len(one.members) for way in all_of_it for one in way), default=0) <= _FEW:
            return
        before = inf
        for steps in _STEPS:
            yield from (found := ways(steps))
            around = (one for way in found for one in way if operation in one.members)
            cuts = (cut for one in around if (cut := self._fewest(one, 0)) is not None)
            needs = min(map(self._needs, cuts), default=inf)
            if needs > before:
                return
            before = needs

    def _starts(self, operation: int) -> Iterator[tuple[int, Along]]:
        """Yield the tensors that a region may be grown from, and their rows, the first dimensions first."""
        values, storages = self.program.values, self.program.storages
        one = self.program.operations[operation]
        made = [v for v in one.call.outputs if v is not None]
        read = [v for v in self._uses.readers if operation in self._uses.readers[v]]
        found = [v for v in (*made, *read) if storages[values[v].storage].kind >= Kind.ACTIVATION]
        found.sort(key=lambda v: -storages[values[v].storage].bytes)
        for value in found[:_SEEDS]:
            shape = values[value].shape
            yield from ((value, along) for along in self._rows(shape) if along.rows(shape) > 1)

    def _rows(self, shape: Sequence[int]) -> Iterator[Along]:
        """Yield rows of a shape: one or two neighbouring dimensions, and samples within the first one."""
        for start in range(len(shape)):
            for stop in range(start + 1, min(start + 2, len(shape)) + 1):
                yield Along(start, stop)
        for samples in self._samples:
            if shape and shape[0] > samples and shape[0] % samples == 0:
                yield Along(0, 1, shape[0] // samples)


def counts(region: Region, above: int = 1) -> Iterator[int]:
    """Yield numbers of pieces that have blocks, each about twice the one before."""
    least, most = 1, min(region.rows, MOST_PIECES)
    while least < most:
        least = min(2 * least, most)
        # Rows over two dimensions may have blocks in equal pieces alone.
        equal = (pieces for pieces in range(least + 1, 2 * least) if region.rows % pieces == 0)
        blocks = (rows for pieces in (least, *equal) if (rows := region.rows_of_piece(pieces)) is not None)
        if (rows := next(blocks, None)) is not None and (pieces := -(-region.rows // rows)) > above:
            yield pieces
            above = pieces
