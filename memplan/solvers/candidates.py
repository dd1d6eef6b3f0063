"""A schedule that a solver considers, with its figures; the limit it must keep, and the refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph, Phase
from ..graphs.machine import Links, Machine, Memory
from ..planner.baseline import baseline, baseline_schedule
from ..planner.bounds import minimum_memory, time_bound
from ..planner.replay.runs import figures_of_runs, schedule_of_runs
from ..planner.schedule.schedule import Schedule, Verb
from ..planner.schedule.sequence import Run, schedule_of
from ..planner.simulator.simulate import simulate
from ..planner.variants import keep_variants, runnable_variants, uses_host
from .problem import Bound, InfeasibleError, NotAcceptedError, OrderName, Problem, SolverResult, Status
from .stages.slots import has_faster_variants


class Candidate:
    """A schedule with its figures: seconds and bytes.

    It may be given as a function that makes it, as few of the candidates' schedules are used.
    """

    def __init__(self, schedule: Schedule | Callable[[], Schedule], time: float, peak: int) -> None:
        self._schedule, self.time, self.peak = schedule, time, peak

    @cached_property
    def schedule(self) -> Schedule:
        return self._schedule if isinstance(self._schedule, Schedule) else self._schedule()


def simulate_candidate(graph: Graph, schedule: Schedule) -> Candidate:
    """Return the schedule with its figures on a device of any size."""
    figures = simulate(graph, schedule, machine=Machine()).figures
    return Candidate(schedule, figures.time, figures.peak)


def candidate_of_runs(graph: Graph, runs: Sequence[Run]) -> Candidate:
    """Return the schedule of these runs.

    Raises InvalidScheduleError if they break a rule, now or when the schedule is first used.
    """
    figures = figures_of_runs(graph, runs)
    if figures is None:
        return simulate_candidate(graph, schedule_of(graph, runs))
    return Candidate(partial(schedule_of_runs, graph, runs), figures.time, figures.peak)


def baseline_candidate(graph: Graph) -> Candidate:
    figures = baseline(graph)
    return Candidate(partial(baseline_schedule, graph), figures.time, figures.peak)


def fastest_baseline(problem: Problem, baseline: Candidate) -> SolverResult | None:
    """Return the baseline as the answer of a solver that chooses among variants on the device.

    None if the baseline does not fit or variants are faster: the solver then searches.
    """
    graph = problem.graph
    if baseline.peak > device_limit(problem) or has_faster_variants(graph):
        return None
    return SolverResult(baseline.schedule, Status.OPTIMAL, time_bound(graph))


def fitting_baseline(problem: Problem) -> SolverResult:
    """Return the baseline, which fits, as the answer of a solver that chooses no variants for speed.

    It is optimal only if no variant, on the device or on the host, could make it faster.
    """
    graph = problem.graph
    on_host = uses_host(keep_variants(graph, runnable_variants(graph, problem.machine)))
    status = Status.HEURISTIC if on_host or has_faster_variants(graph) else Status.OPTIMAL
    return SolverResult(baseline_schedule(graph), status, time_bound(graph))


def peak_without(
    graph: Graph,
    runs: Sequence[Run],
    tensors: Sequence[int] | NDArray[np.int64],
    staying: Collection[int] = (),
) -> int:
    """Return the peak of these runs in device bytes, as if these tensors had no size.

    staying: tensors that are not deleted once they exist.
    """
    sizes = graph.tensors.bytes.copy()
    sizes[tensors] = 0
    light = replace(graph, tensors=replace(graph.tensors, bytes=sizes))
    return simulate_candidate(light, keeping(schedule_of(light, runs), staying)).peak


def keeping(schedule: Schedule, staying: Collection[int]) -> Schedule:
    """Return the schedule without deletes of these tensors on the device: they stay until the iteration
    ends."""
    if not staying:
        return schedule
    steps = [
        step
        for step in schedule
        if not (step.verb == Verb.DELETE and step.where == Memory.DEVICE and step.target in staying)
    ]
    return Schedule.of(steps, schedule.initial)


def device_limit(problem: Problem) -> int:
    """Return the budget, or the device's capacity if that is smaller; bytes."""
    machine = problem.machine or problem.graph.machine
    capacity = machine.device_capacity if machine else None
    return problem.budget if capacity is None else min(problem.budget, capacity)


def require_backward(solver: str, graph: Graph) -> None:
    """Raise NotAcceptedError if the graph is not one of a training."""
    if not (graph.operations.phase == Phase.BACKWARD).any():
        raise NotAcceptedError(f"{solver} takes training graphs; {graph.name} has no backward operations")


def infeasible(
    solver: str, problem: Problem, least: int | None, schedule: Schedule | None = None
) -> InfeasibleError:
    """Return the error that no schedule is within the budget.

    least: the smallest budget, in bytes, that the solver can reach; None if it can't tell.
    schedule: one within it.
    """
    min_memory = minimum_memory(problem.graph, problem.machine)
    return InfeasibleError(solver, device_limit(problem), least, min_memory).holding(schedule)


def own_bound(name: str, problem: Problem, seconds: float, order: OrderName, form: str) -> tuple[Bound, ...]:
    """Return what a solver has proven for schedules on the device alone, as an answer's `bounds`.

    The result is empty if nothing is proven.

    form: as in `Bound`.
    """
    if not 0.0 < seconds < inf:
        return ()
    machine = problem.machine or problem.graph.machine or Machine()
    on_device = machine.links == Links() and not uses_host(problem.graph)
    return (Bound(seconds, name, order, on_device, form=form),)
