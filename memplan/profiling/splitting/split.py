"""A program with regions that run in pieces, as one operation each.

    program ──▶ regions around what is large (growth.py) ──▶ in k pieces (pieces.py) ──▶ program

A tensor that only its region has is not in the program any more. Names of what stays and the fingerprint are
those of the program that was split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ...graphs.errors import MismatchError
from ...graphs.graph import Phase
from ...program.names import Names, operation_name
from ...program.program import Call, Operation, Program, Ref
from ...program.renumbered import with_operations
from ..fusion.fused import Kernels
from ..fusion.members import Members
from .forms import without_forms
from .growth import Uses, regions_at
from .pieces import Pieces
from .region import Region
from .rows import Along

SPLIT = "split"
"""Key of the regions in a graph's `source`, by the name of the operation that each has become."""

EXACT = "exact"
"""Key in a graph's `source` that is true if its regions came out bitwise equal to the same as a whole; the
option's value that asks for it.
"""


class Cut(NamedTuple):
    """A region and the number of its pieces."""

    region: Region
    pieces: int


class Split(NamedTuple):
    """A program with regions in pieces.

    cuts, outputs: by the name of the operation that each region has become.
    """

    program: Program
    cuts: Mapping[str, Cut]
    outputs: Mapping[str, tuple[int, ...]]

    def source(self, *, exact: bool = False) -> dict[str, Any]:
        """Return what the `source` of its graph says of it."""
        return {SPLIT: self.document(), **({EXACT: True} if exact else {})}

    def document(self) -> dict[str, Any]:
        """Return what `split_as_in` makes the same of."""
        found: dict[str, Any] = {}
        for name, cut in self.cuts.items():
            region, seed = cut.region, cut.region.seed
            assert seed is not None
            names = [operation.name for operation in region.operations]
            found[name] = {
                "pieces": cut.pieces,
                "operations": names,
                "seed": [*seed[:1], [*seed.along[:3]], *seed[2:]],
            }
        return found

    @property
    def members(self) -> dict[str, Members]:
        """The calls of each region as a whole, by the name of its operation."""
        return {
            name: Members(
                cut.region.program, cut.region.inputs, self.outputs[name], cut.region.operations, frozenset()
            )
            for name, cut in self.cuts.items()
        }

    @property
    def kernels(self) -> Kernels:
        """What each region runs as a whole, and in pieces."""
        members, found = self.members, dict[str, tuple[Members, Pieces]]()
        for operation in self.program.operations:
            if operation.name in members and isinstance(operation.call.target, Pieces):
                found[operation.name] = members[operation.name], operation.call.target
        return found


def split_as_in(document: Mapping[str, Any], program: Program, *, exact: bool = False) -> Split:
    """Split a program into the regions that a graph names.

    document: the graph's, see `Split.document`.
    exact: whether its regions add nothing up over pieces.

    Raises MismatchError if they are not the model's.
    """
    program = without_forms(program)
    uses, cuts = Uses(program, exact=exact), list[Cut]()
    try:
        for entry in document.values():
            value, along, least, steps, way, place = entry["seed"]
            found = next(islice(regions_at(uses, value, Along(*along), least, steps), way, None))[place]
            if [one.name for one in found.operations] != entry["operations"]:
                raise MismatchError("its regions are not those of the model")
            if not 1 < entry["pieces"] <= found.rows:
                raise ValueError
            cuts.append(Cut(found, entry["pieces"]))
        made = split(program, cuts)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, StopIteration) as error:
        raise MismatchError(f"its `{SPLIT}` is not as it was written") from error
    if made is None or [*made.cuts] != [*document]:
        raise MismatchError("its regions are not those of the model")
    return made


def regions_line(source: Mapping[str, Any]) -> str | None:
    """Return the line on what runs in pieces by a graph's `source`; None if nothing does."""
    document = source.get(SPLIT)
    if not document:
        return None
    regions = (
        f"{len(one['operations'])} operations from {one['operations'][0]} on in {one['pieces']}"
        for one in document.values()
    )
    bits = " with the bits of the whole" if source.get(EXACT) else ""
    return f"in pieces{bits}: {', '.join(regions)}"


def split(program: Program, cuts: Sequence[Cut]) -> Split | None:
    """Replace each region by one operation; None if their operations have no order as such."""
    own = {i: place for place, cut in enumerate(cuts) for i in cut.region.members}
    if len(own) < sum(len(cut.region.members) for cut in cuts):
        return None  # an operation is in two regions
    names = Names()
    for i, operation in enumerate(program.operations):
        if i not in own:
            names.unique(operation.name)
    made: list[Operation] = []
    outputs: dict[str, tuple[int, ...]] = {}
    wanted = outputs_of(program, [cut.region for cut in cuts])
    for cut, results in zip(cuts, wanted, strict=True):
        operation = _operation(names, cut, results)
        if operation is None or not results:
            return None
        made.append(operation)
        outputs[operation.name] = results
    order = _ordered(program, own, made)
    if order is None:
        return None
    named = {operation.name: cut for operation, cut in zip(made, cuts, strict=True)}
    return Split(with_operations(program, order), named, outputs)


def outputs_of(program: Program, regions: Sequence[Region]) -> list[tuple[int, ...]]:
    """Return of each region the values that others read once all of them are replaced."""
    own = {i for region in regions for i in region.members}
    needed = {*program.results}
    for i, operation in enumerate(program.operations):
        if i not in own:
            needed.update((*operation.reads, *operation.mutates))
    for region in regions:
        needed.update(program.values[value].storage for value in region.inputs)
    return [region.outputs(needed) for region in regions]


def _operation(names: Names, cut: Cut, outputs: tuple[int, ...]) -> Operation | None:
    region = cut.region
    values, operations = region.program.values, region.operations
    rows = region.rows_of_piece(cut.pieces)
    if rows is None:
        return None
    # Pieces are written into a new storage, which a result must fill from its start.
    if any(
        values[v].offset or values[v].end > region.program.storages[values[v].storage].bytes for v in outputs
    ):
        return None
    target = Pieces(region, outputs, rows)
    last = operations[-1]
    phases = {operation.phase for operation in operations[len(region.recomputed) :]}
    phase = Phase.LOSS if Phase.LOSS in phases else last.phase
    reads, writes = (
        tuple(dict.fromkeys(values[value].storage for value in group)) for group in (region.inputs, outputs)
    )
    call = Call(target, tuple(map(Ref, region.inputs)), {}, outputs, several=True)
    layer = operations[0].layer
    return Operation(
        name=names.unique(operation_name(target, layer, phase)),
        phase=phase,
        layer=layer,
        call=call,
        reads=reads,
        writes=writes,
        mutates=(),
        random=False,
    )


def _ordered(program: Program, own: Mapping[int, int], made: Sequence[Operation]) -> list[Operation] | None:
    """Return the operations in the program's order, each region where its last member was; what it needs
    stands before it, what needs it after it. None if there is no such order.
    """
    # Members are in order, so the last one of each region stays.
    ends = {place: i for i, place in own.items()}
    left: list[Operation] = []
    for i, operation in enumerate(program.operations):
        if i not in own:
            left.append(operation)
        elif ends[own[i]] == i:
            left.append(made[own[i]])
    there = set(range(len(program.storages)))
    there -= {x for operation in program.operations for x in operation.writes}
    order: list[Operation] = []
    while left:
        waiting: list[Operation] = []
        # What waits for a region may not be passed by who changes what it reads.
        blocked: set[int] = set()
        for operation in left:
            needs = {*operation.reads, *operation.mutates}
            touches = needs & blocked if operation.mutates else set[int]()
            # A draw passes nothing that waits: draws advance one generator in order.
            if needs <= there and not touches and not (waiting and operation.random):
                order.append(operation)
                there.update(operation.writes)
            else:
                waiting.append(operation)
                blocked |= needs
        if len(waiting) == len(left):
            return None
        left = waiting
    return order
