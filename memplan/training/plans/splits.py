"""Plans with regions in pieces: programs of which no operation needs more than some share of the budget.

The first has the fewest regions and pieces; each later one needs less memory and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple, TypeVar

from torch import Tensor

from ...devices.measuring.measure import Measurement
from ...graphs.graph import Graph
from ...profiling.profile.pieces import measured_pieces
from ...profiling.splitting.choice import Choice
from ...profiling.splitting.exact import Exactness
from ...profiling.splitting.split import Split
from ...program.graph import Cost, graph_of
from ...program.program import Program
from ...solvers.problem import InfeasibleError, NotAcceptedError

SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.0)
"""Goals for the largest operation, as shares of the budget without what is there all the time. The last is
that of as many pieces as there can be: what they need does not depend on the budget.
"""

NOTHING_TO_GAIN = 1.005
"""Time of a plan, over that of its operations, up to which pieces or more of them can't make it faster."""

WORTH_ROUNDING = 1.03
"""How much faster a plan with pieces must be than one with eager PyTorch's bits."""

Result = TypeVar("Result")


class SplitProgram(NamedTuple):
    """A program with regions in pieces, measured."""

    split: Split
    measurements: list[Measurement]


def split_programs(
    program: Program,
    measured: Sequence[Measurement],
    tensors: Mapping[int, Tensor],
    room: int,
    exact: Exactness | None,
) -> Iterator[SplitProgram]:
    """Yield programs whose largest operation is smaller and smaller.

    measured: costs of the whole program's operations, in order.
    tensors: those of inputs, buffers and constants, by value.
    room: bytes of the budget besides what is there all the time.
    exact: tells which regions come out bitwise; None if they need not.
    """
    choice = Choice(program, measured, exact)
    before: Mapping[str, int] = {}
    for share in SHARES:
        found = choice.within(int(share * room))
        pieces = {} if found is None else {name: cut.pieces for name, cut in found.cuts.items()}
        if found is not None and pieces != before:
            before = pieces
            yield SplitProgram(found, measured_pieces(program, measured, found, tensors))


def fastest(
    whole: Graph,
    in_pieces: Iterable[tuple[Graph, Split]],
    solve: Callable[[Graph, Split | None], tuple[float, Result]],
    *,
    exact: bool,
) -> Result:
    """Return what solving makes of the graph with the fastest schedule: the whole one, or one in pieces.

    More pieces take longer, and leave more room to what else a plan keeps: they are tried as long as that
    makes it faster.

    in_pieces: graphs with more and more pieces, made as they are asked for.
    solve: returns the seconds of a graph's schedule, and what is to be returned of it.
    exact: pieces have the bits of the whole, so that any gain is worth them.

    Raises InfeasibleError, that of the smallest budget.
    """
    best: tuple[float, Result] | None = None
    refusal: InfeasibleError | None = None
    for graph, split in chain([(whole, None)], in_pieces):
        fewest = float(graph.operations.time.sum())
        if best is not None and fewest >= best[0]:
            break  # more pieces take longer, even with nothing recomputed
        try:
            seconds, result = solve(graph, split)
        except InfeasibleError as error:
            if refusal is None or (error.smallest or inf) <= (refusal.smallest or inf):
                refusal = error
            continue
        except NotAcceptedError:
            if split is None:
                raise
            continue  # a solver of chains may not take a graph with regions
        rated = seconds * (1.0 if split is None or exact else WORTH_ROUNDING)
        if best is not None and rated >= best[0]:
            break
        best = rated, result
        if seconds <= NOTHING_TO_GAIN * fewest:
            break
    if best is None:
        assert refusal is not None
        raise refusal
    return best[1]


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
        measured.append(Measurement(cost.seconds, 0.0, made + cost.workspace_bytes))
    choice = Choice(program, measured, exact)
    found = choice.within(0)
    if found is None:
        return None
    for one in found.program.operations:
        if (cut := found.cuts.get(one.name)) is not None:
            made = sum(found.program.storages[x].bytes for x in one.writes)
            seconds = sum(costs[each.name].seconds for each in cut.region.operations)
            costs[one.name] = Cost(seconds, max(0, choice.peak_bytes(cut) - made))
    return graph_of(found.program, [costs[one.name] for one in found.program.operations])
