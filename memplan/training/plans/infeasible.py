"""What a refused budget says in addition: its share, and bytes with `split=`, `optimizer=` and `machine=`.

Figures are those of schedules that are found, in a moment, so that what is advised can be followed. Only what
fits the loop is tried: an optimizer whose updates are planned, a device that has a host below it. The graph
with updates is estimated, one update per weight added, not traced. Pieces are not measured. Hence "about".
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from torch.optim import Optimizer

from ...graphs.errors import InputError, MemplanError
from ...graphs.graph import Graph, Kind
from ...graphs.machine import Links, Machine
from ...graphs.transformations.updates import ADAMW, with_updates
from ...model.iteration import Iteration
from ...model.processes import Around
from ...planner.bounds import offloads
from ...planner.budget import spelled
from ...planner.schedule.schedule import Schedule
from ...profiling.splitting.split import EXACT
from ...program.program import Program
from ...solvers.problem import InfeasibleError, Problem, percent
from ...solvers.registry.run import solve
from ...updates.catalogue import is_planned
from ...updates.optimizer_memory import update_workspace
from ..options import Options
from .loop_memory import ASSUMED, LoopMemory, StepInfeasibleError, optimizers_of, trained_parameters
from .splits import smallest_in_pieces

_AUTO = "auto"

_ANY_RATE = 1.0
"""Bytes per second of updates whose time does not matter."""

_SECONDS = 1.0
"""The most to spend on each way out."""

ABOUT = 1.02
"""Factor on the bytes of a graph that is estimated."""

_MOST_SPLIT = 5000
"""Number of operations up to which it is looked for what splits."""

_LINKED = Machine(links=Links(1e10, 1e10))
"""A machine with a host: which bytes suffice does not depend on rates."""


def explain(
    error: InfeasibleError,
    problem: Problem,
    whole: Graph,
    outside: LoopMemory,
    program: Program,
    iteration: Iteration,
    options: Options,
) -> None:
    """Add the ways out that were tried to an error whose bytes do not include those outside of the plan.

    whole: the graph of the program; the problem's may have regions in pieces.
    """
    if options.split == EXACT and problem.graph is whole:
        error.advise("nothing that needs so much splits with eager PyTorch's bits")
    # Offloading makes the loop's own optimizer's step no smaller.
    of_step = outside.needed(program)
    for clause in _clauses(
        error,
        problem,
        whole=whole,
        outside=outside,
        of_step=of_step,
        program=program,
        iteration=iteration,
        options=options,
    ):
        error.advise(clause)


def name_smallest(error: StepInfeasibleError, problem: Problem, *, about: float = 1.0) -> None:
    """Let the error of an optimizer's step name bytes that suffice for the plan too.

    about: factor for a graph that is estimated.
    """
    found = _smallest(problem.graph, problem.machine, problem)
    if found is not None:
        error.least = max(ceil(about * found[0]), error.min_memory)
        error.holding(found[1])


def _clauses(
    error: InfeasibleError,
    problem: Problem,
    whole: Graph,
    outside: LoopMemory,
    of_step: int,
    program: Program,
    iteration: Iteration,
    options: Options,
) -> Iterator[str]:
    extra, graph = outside.bytes, problem.graph
    machine = problem.machine or graph.machine
    known = (error.min_memory if error.smallest is None else error.smallest) + extra
    optimizer = _plannable(iteration, options)
    planned = None if optimizer is None else _with_updates(graph, outside, optimizer)
    linked = None if offloads(machine) or not _has_host(graph, problem, iteration) else _LINKED
    # With optimizer= states and gradients are in the graph, so nothing is added for the loop.
    ways = [
        ("optimizer=", planned, machine, 0, 0),
        ("machine=", graph, linked, extra, of_step),
        ("optimizer= and machine=", planned, linked, 0, 0),
        ("split=True", _in_pieces(whole, program, iteration, options), machine, extra, of_step),
    ]
    needs = list[str]()
    for way, tried, on, more, least in ways:
        if tried is None or (on is None and "machine=" in way):
            continue
        found = _smallest(tried, on, problem, options.solver)
        size = 0 if found is None else max(least, ceil(ABOUT * found[0]) + more)
        if 0 < size < known:
            share = "" if error.peak is None else f" ({percent(size, error.peak)})"
            needs.append(f"with {way} from about {spelled(size)}{share}")
    if needs:
        yield f"less suffices {', '.join(needs)}"


def _smallest(
    graph: Graph, machine: Machine | None, problem: Problem, solver: str = _AUTO
) -> tuple[int, Schedule] | None:
    """Return the smallest budget found in a moment, in bytes, and a schedule. problem: what it allows.

    solver: the loop's own, since another one may manage less.

    Below the minimum memory `auto` looks for the least at once, and waits for no compiler.
    """
    try:
        # One byte: the refusal carries the smallest budget that was found.
        solve(solver, Problem(graph, 1, machine, problem.allow), _SECONDS, bound_seconds=0)
    except InfeasibleError as refusal:
        if refusal.smallest is not None and refusal.schedule is not None:
            return refusal.smallest, refusal.schedule
    # Advice only: what fails here must not hide the refusal itself.
    except MemplanError:
        return None
    return None


def _in_pieces(graph: Graph, program: Program, iteration: Iteration, options: Options) -> Graph | None:
    """Return the graph with regions in as many pieces as make it smallest; None if none splits."""
    taken = options.split is True or options.compile
    if taken or not iteration.trains or len(program.operations) > _MOST_SPLIT:
        return None
    return smallest_in_pieces(program, graph)


def smallest_split(program: Program, problem: Problem, solver: str) -> int | None:
    """Return about the smallest budget in bytes with operations in pieces; None if none splits.

    problem: of the graph of the program.
    """
    graph = smallest_in_pieces(program, problem.graph)
    found = None if graph is None else _smallest(graph, problem.machine, problem, solver)
    return None if found is None else ceil(ABOUT * found[0])


def _has_host(graph: Graph, problem: Problem, iteration: Iteration) -> bool:
    """Tell whether tensors of this loop could be offloaded: a CPU has no memory below its own."""
    return graph.source.get("device") != "cpu" and problem.allows("offload") and iteration.processes is None


def _plannable(iteration: Iteration, options: Options) -> Optimizer | None:
    """Return the optimizer that this very loop could give to the plan; None if it can't."""
    if iteration.updates is not None or options.optimizer is not None or not iteration.trains:
        return None
    if isinstance(iteration.module, Around) or iteration.processes is not None:
        return None
    weights, states = list(trained_parameters(iteration.module).values()), options.states
    if isinstance(states, Optimizer):
        found = [states]
    elif isinstance(states, int):
        return None
    else:
        found = optimizers_of(weights) if states is None else []
        found = found or [(states or ASSUMED)(weights)]
    return found[0] if len(found) == 1 and is_planned(found[0]) else None


def _with_updates(graph: Graph, outside: LoopMemory, optimizer: Optimizer) -> Graph | None:
    """Return the graph with updates of as many bytes of states; None if they can't be added."""
    if not outside.bytes:
        return None
    weights = sum(graph.tensors.bytes[x] for x in _gradients(graph))
    try:
        return with_updates(
            graph,
            optimizer=ADAMW,
            when="in-backward",
            device_rate=_ANY_RATE,
            workspace_scale=update_workspace(optimizer),
            # So that the states have the bytes that were counted, whatever the optimizer.
            state_scale=outside.states / max(1, weights * len(ADAMW.states)),
        )
    except InputError:
        return None


def _gradients(graph: Graph) -> list[int]:
    return [x for x in graph.results if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT]
