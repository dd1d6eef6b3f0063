"""The top of the hierarchy: the options of its clusters combined for the one budget of the device.

H-ILP counts clusters from outside. So the schedule, once its operations are laid out and every tensor is
deleted as early as possible, may take less than what was accounted. It may also take more, if a contribution
is recomputed while its first copy exists. The accounted budget is moved by the difference, and the program
solved once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ....graphs.graph import Graph
from ....planner.bounds import minimum_memory
from ....planner.repeats import without_most_repeats
from ....planner.schedule.sequence import Run, schedule_of
from ...candidates import Candidate, simulate_candidate
from ...clock import Clock
from ...milp import solve as milp
from ...milp.result import MilpStatus, Progress, Result, Settings
from ...skipped import skipping
from ..hierarchy.tree import Hierarchy
from .graph import Child, HGraph, h_graph
from .level import Chosen, runs_of, selected
from .model import HProgram, h_program

ROUNDS = 4
"""Most times that the accounted budget is moved."""

TRIES = 100
"""Most recomputations that are checked, one by one, for whether the budget can do without."""

WORTH = 0.01
"""The share of the budget that must be left for another round."""


@dataclass(frozen=True)
class HierarchyResult:
    """The result of the top-level search.

    bound: seconds; no schedule of this form, from these options, is faster.
    nodes: of the trees searched, None if the backend does not report them.
    """

    candidate: Candidate | None
    bound: float
    proven: bool = False
    nodes: int | None = None


def top_graph(hierarchy: Hierarchy, children: Sequence[Child], most: int) -> HGraph:
    return h_graph(hierarchy.root.piece, selected(children, most), hierarchy.middle, hierarchy.after)


def fastest(
    graph: Graph,
    hierarchy: Hierarchy,
    top: HGraph,
    limit: int,
    *,
    gap: float,
    clock: Clock,
    report: Callable[[str], None],
) -> HierarchyResult:
    """Return the fastest schedule within `limit` bytes that the program leads to.

    Below the minimum memory no program is solved: its limit would be too small compared with the sizes.
    """
    if limit < minimum_memory(graph):
        return HierarchyResult(None, inf, proven=True)
    accounted = limit - graph.resident_bytes
    best: Candidate | None = None
    bound, proven, start, nodes = inf, False, None, None
    for attempt in range(ROUNDS):
        program = h_program(top, accounted, corrected=True)
        result = _search(program, gap, clock, start, report)
        clock.interrupted |= result.interrupted
        # Rounds differ in memory, so only the least of their bounds holds for all.
        bound = min(bound, result.bound * program.seconds)
        nodes = result.nodes if result.nodes is None else result.nodes + (nodes or 0)
        if result.x is None:
            # An unfinished round takes nothing from a proof before it.
            proven = proven or result.status == MilpStatus.INFEASIBLE
            return HierarchyResult(best, bound, proven, nodes)
        proven = result.status == MilpStatus.OPTIMAL
        chosen = program.chosen(result.x)
        runs = _laid_out(hierarchy, top, chosen)
        found = _candidate(graph, runs)
        if found is None:
            return HierarchyResult(best, bound, proven=False, nodes=nodes)
        if found.peak > limit:
            # The excess, doubled each round: accounted and real bytes need not differ by a constant.
            accounted -= (found.peak - limit) << attempt
            continue
        left = limit - found.peak
        runs = without_most_repeats(graph, runs, limit, TRIES, clock.goes_on)
        found = _candidate(graph, runs) or found
        if best is None or found.time < best.time:
            best = found
        if left < WORTH * limit or clock.expired:
            return HierarchyResult(best, bound, proven, nodes)
        # The answer so far is a feasible start within more memory.
        accounted, start = accounted + left, chosen
    return HierarchyResult(best, bound, proven, nodes)


def lightest(graph: Graph, hierarchy: Hierarchy, top: HGraph, clock: Clock) -> Candidate | None:
    """Return the schedule of least accounted memory; None if the time is not enough to prove that."""
    enough = int(2 * graph.tensors.bytes.sum() + graph.operations.workspace.sum())
    program = h_program(top, enough, corrected=True, least=True)
    result = milp.solve(program.program, Settings(gap=0.0, threads=1), time_limit=clock.limit)
    if result.x is None or result.status != MilpStatus.OPTIMAL:
        return None
    return _candidate(graph, _laid_out(hierarchy, top, program.chosen(result.x)))


def _candidate(graph: Graph, runs: Sequence[Run]) -> Candidate | None:
    """Return the schedule of these runs; None if it breaks a rule."""
    with skipping("h-ilp's top level"):
        return simulate_candidate(graph, schedule_of(graph, runs))
    return None


def _search(
    program: HProgram, gap: float, clock: Clock, start: Chosen | None, report: Callable[[str], None]
) -> Result:
    def tell(progress: Progress) -> None:
        report(f"top: {progress.line(program.seconds)}")

    return milp.solve(
        program.program,
        Settings(gap=gap, threads=1),
        time_limit=clock.limit,
        start=program.values(start) if start else None,
        progress=tell,
    )


def _laid_out(hierarchy: Hierarchy, top: HGraph, chosen: Chosen) -> list[Run]:
    """Return the operations of the whole iteration, in the graph's numbers."""
    forward, backward = runs_of(top, chosen)
    operations = hierarchy.root.operations
    return [(operations[operation], mode) for operation, mode in (*forward, *backward)]
