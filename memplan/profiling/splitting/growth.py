"""Regions: operations that run in pieces together, found from one large tensor and its rows.

A region grows along large tensors: what makes or reads one joins, if its rule knows the rows. Then come
the operations between two of its members, so that the region can run as one. What its members read of others
is there before; what others read of them is written piece by piece.

A forward pass and its backward are one region if nothing else lies between them, as at a loss: then logits
never exist as a whole. Otherwise they are two, and the backward one recomputes what it needs of the forward
one, piece by piece.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from ...graphs.graph import Phase
from ...program.program import Call, Operation, Program, values_read
from .operators import FORM_ONLY, name_of, pattern
from .region import Region, Seed, first_made, made_by
from .rows import Along
from .rules import SUM, WHOLE, Part, Pattern


class Uses:
    """Who makes and reads what in a program.

    exact: regions add nothing up over pieces, in which numbers would be rounded in another order.
    """

    def __init__(self, program: Program, *, exact: bool = False) -> None:
        self.program, self.exact = program, exact
        self.writer = {x: i for i, one in enumerate(program.operations) for x in one.writes}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for i, operation in enumerate(program.operations):
            for value in values_read(operation.call):
                self.readers[value].append(i)
        self.views: dict[int, list[int]] = defaultdict(list)
        for view, call in program.views.items():
            for value in values_read(call):
                self.views[value].append(view)

    def between(self, members: Set[int]) -> set[int]:
        """Return the operations that need results of some members and whose results others need."""
        return (self._after(members) & self._before(members)) - members

    def _after(self, members: Set[int]) -> set[int]:
        operations = self.program.operations
        found: set[int] = set()
        touched = {x for i in members for x in operations[i].writes}
        for i in range(min(members) + 1, len(operations)):
            one = operations[i]
            if not touched.isdisjoint((*one.reads, *one.mutates)):
                found.add(i)
                touched.update((*one.writes, *one.mutates))
        return found

    def _before(self, members: Set[int]) -> set[int]:
        operations = self.program.operations
        found: set[int] = set()
        wanted = {x for i in members for x in operations[i].reads}
        for i in reversed(range(max(members))):
            one = operations[i]
            if not wanted.isdisjoint((*one.writes, *one.mutates)):
                found.add(i)
                wanted.update((*one.reads, *one.mutates))
        return found


MOST_BETWEEN = 200
"""Number of operations between members up to which they can be one region."""

MOST_WHOLE = 2**16
"""Bytes of a result that each piece makes as a whole."""


def regions_at(
    uses: Uses, value: int, along: Along, least: int, steps: int | None = None
) -> Iterator[list[Region]]:
    """Yield the ways to run what is around a tensor in pieces along these rows: forward and backward as one
    region, then as one each.

    least: bytes from which a tensor is large.
    steps: number of operations from the tensor on over which the region grows; None: as far as it can.
    """
    for way, found in enumerate(_ways(uses, value, along, least, steps)):
        seeds = (Seed(value, along, least, steps=steps, way=way, place=place) for place in range(len(found)))
        regions = (region.with_all_rows() for region in found)
        yield [replace(region, seed=seed) for region, seed in zip(regions, seeds, strict=True)]


def _ways(uses: Uses, value: int, along: Along, least: int, steps: int | None) -> Iterator[list[Region]]:
    operations = uses.program.operations
    growth = _Growth(uses, least, steps, along.rows(uses.program.values[value].shape))
    growth.grow(value, along.trimmed(uses.program.values[value].shape))
    phases = {operations[i].phase == Phase.BACKWARD for i in growth.members}
    # On copies: an attempt that fails has added members.
    if len(phases) > 1 and (together := growth.copy().region(None)) is not None:
        yield [together]
    forward = growth.copy().region(False)
    own = growth.copy().region(True, forward)
    apart = [region for region in (forward, own) if region is not None]
    if apart:
        yield apart


class _Growth:
    """The state of a region that grows.

    parts: of each value inside, and of those of others that it reads, where the rows are.
    distance: of each of these the number of operations from the seed to it.
    """

    def __init__(self, uses: Uses, least: int, steps: int | None, rows: int) -> None:
        self._uses, self._least, self._steps, self._rows = uses, least, steps, rows
        self._program = uses.program
        self.members: set[int] = set()
        self._parts: dict[int, Part] = {}
        self._patterns: dict[int, Pattern] = {}
        self._open: deque[int] = deque()
        self._distance: dict[int, int] = {}
        self._here = 0

    def copy(self) -> _Growth:
        made = _Growth(self._uses, self._least, self._steps, self._rows)
        made.members, made._parts, made._patterns = {*self.members}, {**self._parts}, {**self._patterns}
        made._distance = {**self._distance}
        return made

    def grow(self, value: int, along: Along) -> None:
        """Add what makes or reads large tensors, from this one on."""
        self._assign(value, along)
        self._settle()

    def region(self, backward: bool | None, forward: Region | None = None) -> Region | None:
        """Return the region of the members and what is between them; None if they can't run as one.

        backward: of the members of this phase only.
        forward: a region of which it recomputes what is large.
        """
        if not self._of_phase(backward):
            return None
        # More would be another region than the one that was grown.
        most = MOST_BETWEEN if self._steps is None else len(self.members)
        # Until nothing is left between: what joins may itself need and make results.
        while between := self._uses.between(own := self._of_phase(backward)):
            if len(between) > most or not all(self._include(i) for i in sorted(between)):
                return None
        recomputed = self._recomputed(own, forward)
        members = tuple(sorted(own)), tuple(sorted(recomputed))
        found = Region(self._program, *members, self._patterns, self._rows)
        return found if self._is_whole(found) and self._is_unchanged(found) else None

    def _of_phase(self, backward: bool | None) -> set[int]:
        operations = self._program.operations
        return {i for i in self.members if backward in (None, operations[i].phase == Phase.BACKWARD)}

    def _recomputed(self, own: Set[int], forward: Region | None) -> set[int]:
        """Return the operations of a forward region whose large results these members read."""
        found: set[int] = set()
        known = {*forward.members} if forward else set[int]()
        if forward:
            self._patterns = {**forward.patterns, **self._patterns}
        left = [*own]
        while left:
            for x in self._program.operations[left.pop()].reads:
                writer = self._uses.writer.get(x)
                if writer in known and writer not in found and self._is_large(x):
                    found.add(writer)
                    left.append(writer)
        return found

    def _is_large(self, storage: int) -> bool:
        return self._program.storages[storage].bytes >= self._least

    def _assign(self, value: int, part: Part) -> None:
        self._parts[value] = self._trimmed(value, part)
        self._distance.setdefault(value, self._here)
        self._open.append(value)

    def _trimmed(self, value: int, part: Part) -> Part:
        return part.trimmed(self._program.values[value].shape) if isinstance(part, Along) else part

    def _is_rounded(self, value: int) -> bool:
        dtype = self._program.values[value].dtype
        return dtype.is_floating_point or dtype.is_complex

    def _fits(self, call: Call, found: Pattern) -> bool:
        """Tell whether the rows of a call's tensors are where those around it have them."""
        made = [(v, part) for v, part in zip(call.outputs, found.outputs, strict=True) if v is not None]
        if self._uses.exact and any(part is SUM and self._is_rounded(value) for value, part in made):
            return False
        for value, part in (*found.inputs.items(), *made):
            if isinstance(part, Along) and part.region_rows(self._program.values[value].shape) != self._rows:
                return False
            read = value in found.inputs
            # A tensor may be read whole by one call and in pieces by another.
            known = value in self._parts and not (read and part is WHOLE)
            if known and self._parts[value] != self._trimmed(value, part):
                return False
        return True

    def _settle(self) -> None:
        done: set[int] = set()
        while self._open:
            # First come, first served: so each value is reached over the fewest operations.
            value = self._open.popleft()
            part = self._parts[value]
            if value in done or not isinstance(part, Along):
                continue
            done.add(value)
            storage = self._program.values[value].storage
            self._here = distance = self._distance[value]
            if value in self._program.views:
                self._view(self._program.views[value], value, part)
            for view in self._uses.views[value]:
                self._view(self._program.views[view], value, part)
            if self._is_large(storage) and (self._steps is None or distance < self._steps):
                self._here = distance + 1
                writer = [self._uses.writer[storage]] if storage in self._uses.writer else []
                for i in (*(writer if value not in self._program.views else ()), *self._uses.readers[value]):
                    self._join(i, value, part)

    def _view(self, call: Call, at: int, along: Along) -> None:
        found = pattern(call, self._program.values, at, along)
        if found is not None and self._fits(call, found):
            self._apply(call, found)

    def _join(self, i: int, at: int, along: Along) -> bool:
        """Add an operation, if it splits."""
        if i in self.members:
            return True
        operation = self._program.operations[i]
        if not _may_run_in_pieces(operation):
            return False
        found = pattern(operation.call, self._program.values, at, along)
        if found is None or not self._fits(operation.call, found):
            return False
        self.members.add(i)
        self._apply(operation.call, found)
        return True

    def _apply(self, call: Call, found: Pattern) -> None:
        self._patterns[first_made(call)] = found
        for value, part in found.inputs.items():
            if isinstance(part, Along):
                self._assign(value, part)
        for value, part in zip(call.outputs, found.outputs, strict=True):
            if value is not None:
                self._assign(value, part)

    def _include(self, i: int) -> bool:
        """Add an operation between two members. If steps are counted, nothing grows from it."""
        operation = self._program.operations[i]
        self._here = self._steps or 0
        if not _may_run_in_pieces(operation):
            return False
        reads = values_read(operation.call)
        for value in reads:
            if isinstance(part := self._part_of(value), Along):
                joined = self._join(i, value, part)
                self._settle()
                return joined
        if self._whole(operation.call, reads):
            self.members.add(i)
            return True
        return False

    def _part_of(self, value: int) -> Part | None:
        """Return where the rows are in a value, which may be a view of a tensor that is whole."""
        if value not in self._parts and value in self._program.views:
            call = self._program.views[value]
            bases = values_read(call)
            if bases and all(self._part_of(base) is WHOLE for base in bases):
                self._whole(call, bases)
        return self._parts.get(value)

    def _whole(self, call: Call, reads: Sequence[int]) -> bool:
        """Add a call that each piece makes as a whole: of few bytes, of what is whole or read as a form."""
        known = [self._part_of(value) for value in reads]
        forms = frozenset(reads if name_of(call) in FORM_ONLY else ())
        if any(isinstance(part, Along) or (part is SUM and not forms) for part in known):
            return False
        sizes = (self._program.storages[self._program.values[v].storage].bytes for v in made_by(call))
        if not reads or max(sizes, default=0) > MOST_WHOLE:
            return False
        whole = (WHOLE,) * len(call.outputs)
        self._apply(call, Pattern(dict.fromkeys(reads, WHOLE), whole, forms=forms))
        return True

    def _is_whole(self, region: Region) -> bool:
        """Tell whether each call finds in a piece what it needs of the region's own tensors."""
        values = self._program.values
        parts: dict[int, Part] = {}
        for call in region.calls:
            found = self._patterns.get(first_made(call))
            if found is None:
                return False
            early = {v for one in (found.before or {}).values() for v in values_read(one)}
            for value in values_read(call):
                if values[value].storage not in region.made:
                    continue
                form_only = parts[value] is SUM and value in found.forms
                if value in early or (
                    parts[value] != self._trimmed(value, found.inputs[value]) and not form_only
                ):
                    return False
            for value, part in zip(call.outputs, found.outputs, strict=True):
                if value is not None:
                    parts[value] = self._trimmed(value, part)
        return True

    def _is_unchanged(self, region: Region) -> bool:
        """Tell whether nobody changes what the region reads or makes between its first call and its last.

        Its calls run together where the last of them was, after the change.
        """
        own = {*region.recomputed, *region.members}
        touched = region.made.union(*(self._program.operations[i].reads for i in own))
        between = (self._program.operations[i] for i in range(min(own), max(own)) if i not in own)
        return all(touched.isdisjoint(operation.mutates) for operation in between)


def _may_run_in_pieces(operation: Operation) -> bool:
    """Tell whether an operation may run more than once: it changes nothing, draws nothing and says nothing to
    others. The loss runs once only since it marks the end of forward.
    """
    if operation.mutates or operation.random or operation.phase == Phase.UPDATE:
        return False
    return (not operation.once or operation.phase == Phase.LOSS) and [*made_by(operation.call)] != []
