"""Plans with regions in pieces: programs of which no operation needs more than some share of the budget.

The first has the fewest regions and pieces; each later one needs less memory and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ...devices.measuring.measure import Measurement
from ...graphs.graph import Graph
from ...profiling.profile.pieces import measured_pieces
from ...profiling.splitting.choice import Choice
from ...profiling.splitting.exact import Exactness
from ...profiling.splitting.split import Split
from ...program.graph import Cost, graph_of
from ...program.program import Program

SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.0)
"""Goals for the largest operation, as shares of the budget without what is there all the time. The last is
that of as many pieces as there can be: what they need does not depend on the budget.
"""


class SplitProgram(NamedTuple):
    """A program with regions in pieces, measured."""

    split: Split
    measurements: list[Measurement]


def split_programs(
    program: Program,
    measured: Sequence[Measurement],
    tensors: Mapping[int, Tensor],
    room: int | None,
    exact: Exactness | None,
) -> Iterator[SplitProgram]:
    """Yield programs whose largest operation is smaller and smaller.

    measured: costs of the whole program's operations, in order.
    tensors: those of inputs, buffers and constants, by value.
    room: bytes of the budget besides what is there all the time; None for those that the largest operation
        needs, so that there is a program for any budget.
    exact: tells which regions come out bitwise; None if they need not.
    """
    choice = Choice(program, measured, exact)
    room = choice.largest if room is None else room
    before: Mapping[str, int] = {}
    for share in SHARES:
        found = choice.within(int(share * room))
        pieces = {} if found is None else {name: cut.pieces for name, cut in found.cuts.items()}
        # A smaller goal may give the same pieces, whose measurement takes seconds.
        if found is not None and pieces != before:
            before = pieces
            yield SplitProgram(found, measured_pieces(program, measured, found, tensors))


def smallest_in_pieces(program: Program, graph: Graph, exact: Exactness | None = None) -> Graph | None:
    """Return the graph with as many pieces as make its operations smallest, by sizes of blocks alone; None if
    nothing splits.

    graph: of the program, in its order.
    exact: see `split_programs`.
    """
    columns = graph.operations
    costs: dict[str, Cost] = {}
    measured: list[Measurement] = []
    for i, operation in enumerate(program.operations):
        made = sum(program.storages[x].bytes for x in operation.writes)
        cost = costs[operation.name] = Cost(float(columns.time[i]), int(columns.workspace[i]))
        # A measurement's bytes are results and workspace together; a graph has them apart.
        measured.append(Measurement(cost.seconds, 0.0, made + cost.workspace_bytes))
    choice = Choice(program, measured, exact)
    found = choice.within(0)
    if found is None:
        return None
    for one in found.program.operations:
        if (cut := found.cuts.get(one.name)) is not None:
            made = sum(found.program.storages[x].bytes for x in one.writes)
            # A lower bound: pieces take longer than the whole, by how much only measuring tells.
            seconds = sum(costs[each.name].seconds for each in cut.region.operations)
            costs[one.name] = Cost(seconds, max(0, choice.peak_bytes(cut) - made))
    return graph_of(found.program, [costs[one.name] for one in found.program.operations])
