"""torch-partitioner: what `torch.compile` recomputes, under its `activation_memory_budget`.

PyTorch's partitioner decides which tensors of the forward pass are saved (saved.py); backward recomputes all
else, each tensor once, right before it is first needed, as autograd orders it. Its budget is a share of the
activations of its own choice at 1, and not a limit: the resulting peak is not known beforehand. So here many
shares are tried, as a user would, and the fastest schedule whose peak is within the budget is the answer.

Differences from `torch.compile`: the graph has the operations of eager PyTorch as `plan profile` traces them,
without Inductor's decompositions and without views. What is recomputed takes its seconds once more, though
Inductor recomputes cheap operations within the kernel that needs them. Seconds are the graph's, while PyTorch
counts floating-point operations unless it is set to measure. Updates stay at their position in traced order,
and what reads a tensor that one of them has changed by then is saved.

Reference: PyTorch 2.13, torch/_functorch/partitioners.py; `torch._functorch.config.activation_memory_budget`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import inf

from ....graphs.graph import Graph, Phase
from ....planner.bounds import minimum_memory, time_bound
from ....planner.errors import InvalidScheduleError
from ....planner.schedule.sequence import Run, in_default_mode, schedule_of
from ...candidates import (
    Candidate,
    baseline_candidate,
    device_limit,
    infeasible,
    require_backward,
    simulate_candidate,
)
from ...problem import NotAcceptedError, NotFoundError, Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from .joint import Joint, joint
from .saved import Partitioner

NAME = "torch-partitioner"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of torch-partitioner."""

    share: float | None = setting(
        None,
        "PyTorch's activation_memory_budget; empty: the fastest that fits, of those from 1 to 0 in `steps` "
        "steps",
        least=0,
        most=1,
    )
    steps: int = setting(20, "steps from 1 to 0", least=1, most=1000)


def solve(problem: Problem, options: Options) -> SolverResult:
    """Return the fastest schedule of all shares tried; at the time limit the best so far.

    At least one share is tried.

    Raises InfeasibleError if none is within the budget, NotFoundError if time was too short for all.
    """
    graph, limit = problem.graph, device_limit(problem)
    settings = options.chosen(Settings)
    require_backward(NAME, graph)
    clock = options.clock()
    one, steps = settings.share, range(settings.steps, -1, -1)
    shares = [step / settings.steps for step in steps] if one is None else [one]
    best: Candidate | None = None
    least = inf
    whole = True
    for found in chain([baseline_candidate(graph)] if one is None else [], candidates(graph, shares)):
        least = min(least, found.peak)
        if found.peak <= limit and (best is None or found.time < best.time):
            best = found
            options.race.found(found.time, NAME)
        if clock.expired:
            whole = False
            break
    if best is not None:
        return SolverResult(best.schedule, Status.HEURISTIC, time_bound(graph))
    if least == inf:
        raise NotAcceptedError(f"{NAME} would recompute what can't be recomputed: leave out share={one}")
    if not whole:
        raise NotFoundError(NAME, limit, minimum_memory(graph, problem.machine), int(least))
    raise infeasible(NAME, problem, int(least))


def candidates(graph: Graph, shares: Sequence[float]) -> Iterator[Candidate]:
    """Yield a schedule for each choice of what is saved, if it breaks no rule."""
    fixed, seconds = frozenset[int](), graph.operations.time.tolist()
    while True:
        nodes = joint(graph, fixed)
        partitioner, seen = Partitioner(nodes, seconds), set[frozenset[int]]()
        try:
            for share in shares:
                saved = partitioner.saved(share)
                if saved not in seen:
                    seen.add(saved)
                    order = runs(graph, nodes, saved)
                    with suppress(InvalidScheduleError):
                        yield simulate_candidate(graph, schedule_of(graph, order))
            return
        except _ChangedError as late:
            if late.operation in fixed:  # it would run late all the same: an odd graph
                return
            fixed |= {late.operation}


class _ChangedError(Exception):
    """An operation would run when something it reads has been changed in place: it has to be saved."""

    def __init__(self, operation: int) -> None:
        self.operation = operation


def runs(graph: Graph, nodes: Joint, saved: frozenset[int]) -> list[Run]:
    """Return the traced order, with what backward lacks recomputed once, right before it is needed.

    Raises _ChangedError.
    """
    unused = set[int]()
    while True:
        found = _order(graph, nodes, saved, unused)
        never = set(range(len(graph.operations))).difference(found)
        if never <= unused:  # what has no place is last, and the simulator checks whether that holds
            return in_default_mode([*found, *sorted(never)])
        unused |= never


def _order(graph: Graph, nodes: Joint, saved: frozenset[int], unused: set[int]) -> list[int]:
    """Return the order of operations.

    unused: those that run in forward though nobody needs them.
    """
    phases: list[int] = graph.operations.phase.tolist()
    writes, inputs, producers = graph.operations.writes.lists(), graph.input_lists, graph.producers.lists()
    later = {o for node, o in enumerate(nodes.operation) if nodes.backward[node]}
    ahead = _ahead(nodes, saved) | unused
    # Tensors that backward finds; what it lacks is recomputed from these.
    there = {nodes.tensor[node] for node in saved}  # for backward
    found, done, changed = list[int](), set[int](), dict[int, int]()

    def run(operation: int) -> None:
        found.append(operation)
        done.add(operation)
        changed.update((x, operation) for x in graph.mutate_lists[operation])

    def complete(operation: int) -> None:
        lacking, left = set[int](), [operation]
        while left:
            missing = (x for x in inputs[left.pop()] if x not in there)
            more = {producer for x in missing for producer in producers[x]} - lacking - {operation}
            lacking |= more
            left += more
        for one in sorted(lacking):
            # What it reads or makes has been changed in place since its first run: it would compute something
            # else.
            if any(changed.get(x, -1) > one for x in (*inputs[one], *writes[one])):
                raise _ChangedError(one)
            run(one)
            there.update(writes[one])
        run(operation)
        there.update(writes[operation])

    early = sorted(o for o in ahead if phases[o] == Phase.BACKWARD)
    for operation, phase in enumerate(phases):
        if operation in later:
            for one in early:  # saved, though only backward needs it
                if all(producer in done for x in inputs[one] for producer in producers[x]):
                    run(one)
            early = []
            complete(operation)
        elif phase == Phase.UPDATE or (operation in ahead and operation not in done):
            run(operation)
    return found


def _ahead(nodes: Joint, saved: frozenset[int]) -> set[int]:
    """Return the operations that forward runs: for its own sake, or for what is saved."""
    needed = [nodes.forward[node] or node in saved for node in range(len(nodes))]
    for node in reversed(range(len(nodes))):
        if needed[node]:
            for other in nodes.reads[node]:
                needed[other] = True
    return {o for node, o in enumerate(nodes.operation) if needed[node] and o >= 0}
