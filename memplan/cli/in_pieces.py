"""A model file planned with operations in pieces, and what a refusal without them says of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..graphs.graph import Graph
from ..planner.baseline import baseline
from ..planner.bounds import minimum_memory
from ..planner.budget import spelled
from ..solvers.problem import InfeasibleError, Problem, percent
from ..solvers.splits import fastest
from .models import model_code
from .next_command import command_within
from .printing.figures import duration
from .printing.output import Output, Row
from .profiling import Measurement, pieces_rows, profile_of
from .solving import Found, Search

if TYPE_CHECKING:
    from ..profiling.splitting.split import Split
    from ..program.program import Program

NOTHING_EXACT = "nothing that needs so much splits with eager PyTorch's bits"


def solve_in_pieces(
    model: str,
    measurement: Measurement,
    search: Search,
    solve: Callable[[Graph], Found],
    output: Output,
) -> tuple[Graph, Found]:
    """Measure a model, and return the graph, whole or with regions in pieces, that has the fastest schedule.

    Raises MemplanError.
    """
    from ..profiling.profile.profile import made_within
    from ..tracing.output_layouts import residents
    from ..training.plans.splits import split_programs

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
        # After Ctrl-C the best so far is the answer: nothing more is measured.
        while not any(found is not None and found.solution.interrupted for found in tried):
            with model_code(model, measurement.device), output.status("profiling pieces"):
                found = next(programs, None)
                if found is None:
                    return
                graph = one.in_pieces(found.split, found.measurements, exact=measurement.exact)
            yield named(graph), found.split

    def solved(graph: Graph, _split: Split | None) -> tuple[float, tuple[Graph, Found]]:
        # Before solving, which may refuse: the number of attempts counts those too.
        tried.append(None)
        tried[-1] = found = solve(graph)
        return found.solution.figures.time, (graph, found)

    try:
        return fastest(named(one.graph), in_pieces(), solved, exact=measurement.exact)
    except InfeasibleError as error:
        if measurement.exact:
            if len(tried) == 1:
                error.advise(NOTHING_EXACT)
            _advise(error, one.program, one.graph, search)
        raise


def graphs_with_splits(model: str, measurement: Measurement, output: Output) -> tuple[Graph, list[Graph]]:
    """Measure a model, and return its graph, and those with regions in more and more pieces.

    Raises MemplanError.
    """
    from ..tracing.output_layouts import residents
    from ..training.plans.splits import split_programs

    one = profile_of(model, measurement, output)
    splits: list[Graph] = []
    with model_code(model, measurement.device), output.status("profiling pieces"):
        exact = one.exactness() if measurement.exact else None
        tensors = residents(one.program, one.iteration)
        for found, measured in split_programs(one.program, one.measurements, tensors, None, exact):
            splits.append(one.in_pieces(found, measured, exact=measurement.exact))
    return one.graph, splits


def splits_rows(splits: Sequence[Graph]) -> Iterator[Row]:
    """Yield a row for each split: its minimum memory, and the time of its operations."""
    for number, graph in enumerate(splits, 1):
        seconds, least = duration(float(graph.operations.time.sum())), spelled(minimum_memory(graph))
        pieces = pieces_rows(graph.source)[0][1]
        yield f"split {number}", f"{seconds}, needs {least} at least; {pieces}"


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
    # Only if less suffices than without pieces.
    if size is None or size >= known:
        return
    share = percent(size, baseline(graph).peak)
    clause = f"less suffices with --split from about {spelled(size)} ({share})"
    # The command below has --split instead: exact pieces do not suffice.
    words = [word for word in sys.argv if word != "--split-exact"]
    line = command_within(share if error.peak is not None else f"{size}B", words)
    error.advise(clause if line is None else f"{clause}: {line} --split")
