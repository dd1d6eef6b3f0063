"""What a refused budget says in addition: shares, and the minimum memory with `optimizer=` and `machine=`.

The minimum with updates is estimated on the graph with one update per weight added, not traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..graphs.errors import InputError
from ..graphs.graph import Graph, Kind
from ..graphs.transformations.updates import ADAMW, with_updates
from ..planner.bounds import least_memory, minimum_memory, offloads
from ..planner.budget import spelled
from ..solvers.allowed import restrict
from ..solvers.problem import InfeasibleError, Problem
from .loop_memory import LoopMemory

_ANY_RATE = 1.0
"""Bytes per second of updates whose time does not matter."""


def explain(
    error: InfeasibleError, problem: Problem, outside: LoopMemory, step: int, peak: int | None
) -> None:
    """Add clauses to an error whose bytes do not include those outside of the plan.

    step: bytes that the optimizer's step after the plan needs, 0 if there is none.
    peak: of the whole loop's baseline, bytes, if the budget is a share of it.
    """
    if error.min_memory_offloading is not None:
        error.min_memory_offloading = max(error.min_memory_offloading, step - outside.bytes)
    for clause in _clauses(error, problem, outside, step, peak):
        error.advise(clause)


def percent(size: int, peak: int) -> str:
    """Return a share that suffices as a budget: rounded up."""
    return f"{ceil(100 * size / peak)}%"


def _clauses(
    error: InfeasibleError, problem: Problem, outside: LoopMemory, step: int, peak: int | None
) -> Iterator[str]:
    extra, problem = outside.bytes, restrict(problem).problem

    def share(size: int) -> str:
        return "" if peak is None else f" ({percent(size, peak)})"

    if peak is not None:
        least = minimum_memory(problem.graph, problem.machine)  # the step's error does not know it
        found = max(error.min_memory if error.least is None else error.least, least) + extra
        all_of_it = ": recomputation saves nothing" if percent(found, peak) == "100%" else ""
        yield f"{percent(found, peak)} of the baseline's peak ({spelled(peak)}) is needed{all_of_it}"
    known = min(error.min_memory, error.least or error.min_memory) + extra
    machine = problem.machine or problem.graph.machine
    planned = None if not extra else _with_updates(problem.graph, outside)
    links = not offloads(machine) and problem.allows("offload")
    ways = [
        ("optimizer=", planned and minimum_memory(planned, machine)),
        ("machine=", max(least_memory(problem.graph) + extra, step) if links else None),
        ("optimizer= and machine=", least_memory(planned) if links and planned else None),
    ]
    needs = [
        f"with {way} from about {spelled(size)}{share(size)}" for way, size in ways if size and size < known
    ]
    if needs:
        yield f"less suffices {', '.join(needs)}"


def _with_updates(graph: Graph, outside: LoopMemory) -> Graph | None:
    """Return the graph with updates of as many bytes of states; None if they can't be added."""
    weights = sum(graph.tensors.bytes[x] for x in _gradients(graph))
    try:
        return with_updates(
            graph,
            optimizer=ADAMW,
            when="in-backward",
            device_rate=_ANY_RATE,
            state_scale=outside.states / max(1, weights * len(ADAMW.states)),
        )
    except InputError:
        return None


def _gradients(graph: Graph) -> list[int]:
    return [x for x in graph.results if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT]
