"""A model file planned with operations in pieces, and what a refusal without them says of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..graphs.graph import Graph
from ..planner.baseline import baseline
from ..planner.budget import spelled
from ..solvers.problem import InfeasibleError, Problem, percent
from .models import model_code
from .next_command import command_within
from .printing.output import Output
from .profiling import Measurement, profile_of
from .solving import Found, Search

if TYPE_CHECKING:
    from ..profiling.splitting.split import Split
    from ..program.program import Program

NOTHING_EXACT = "nothing that needs so much splits with eager PyTorch's bits"


def solve_in_pieces(
    model: str,
    measurement: Measurement,
    search: Search,
    solve: Callable[[Graph, int], Found],
    output: Output,
) -> tuple[Graph, Found]:
    """Measure a model, and return the graph, whole or with regions in pieces, that has the fastest schedule.

    solve: solves a graph. It takes the peak of the baseline with whole operations, of which shares are.

    Raises MemplanError.
    """
    from ..profiling.profile.profile import made_within
    from ..tracing.output_layouts import residents
    from ..training.plans.splits import fastest, split_programs

    budget = measurement.within
    assert budget is not None
    one = profile_of(model, measurement, output)
    peak, resident = baseline(one.graph).peak, one.graph.resident_bytes
    exact = one.exactness() if measurement.exact else None
    tried: list[Found | None] = []

    def named(graph: Graph) -> Graph:
        return made_within(graph, budget, peak, exact=measurement.exact)

    def in_pieces() -> Iterator[tuple[Graph, Split]]:
        room = budget.bytes_of(peak, resident) - resident
        tensors = residents(one.program, one.iteration)
        programs = split_programs(one.program, one.measurements, tensors, room, exact)
        while not any(found is not None and found.solution.interrupted for found in tried):
            with model_code(model, measurement.device), output.status("profiling pieces"):
                found = next(programs, None)
                if found is None:
                    return
                graph = one.in_pieces(found.split, found.measurements, exact=measurement.exact)
            yield named(graph), found.split

    def solved(graph: Graph, _split: Split | None) -> tuple[float, tuple[Graph, Found]]:
        tried.append(None)
        tried[-1] = found = solve(graph, peak)
        return found.solution.figures.time, (graph, found)

    try:
        return fastest(named(one.graph), in_pieces(), solved, exact=measurement.exact)
    except InfeasibleError as error:
        if measurement.exact:
            if len(tried) == 1:
                error.advise(NOTHING_EXACT)
            _advise(error, one.program, one.graph, search)
        raise


def advise_pieces(
    error: InfeasibleError, graph: Graph, model: str, measurement: Measurement, search: Search
) -> None:
    """Add what suffices with --split to a refusal of a graph as it was measured, if that is less."""
    from ..profiling.profile.profile import traced

    with model_code(model, measurement.device):
        _iteration, program = traced(model, measurement.device, measurement.optimizer)
    if program.fingerprint == graph.source.get("fingerprint"):
        _advise(error, program, graph, search)


def _advise(error: InfeasibleError, program: Program, graph: Graph, search: Search) -> None:
    from ..training.plans.infeasible import smallest_split

    size = smallest_split(program, Problem(graph, error.budget, graph.machine, search.allow), search.solver)
    known = error.min_memory if error.smallest is None else error.smallest
    if size is None or size >= known:
        return
    share = percent(size, baseline(graph).peak)
    clause = f"less suffices with --split from about {spelled(size)} ({share})"
    words = [word for word in sys.argv if word != "--split-exact"]
    line = command_within(share if error.peak is not None else f"{size}B", words)
    error.advise(clause if line is None else f"{clause}: {line} --split")


def of_shares(source: Any) -> int | None:
    """Return the peak of which shares of a graph in pieces are, bytes; None for a whole graph."""
    within = source.get("within")
    return within.get("peak") if isinstance(within, dict) else None  # pyright: ignore
