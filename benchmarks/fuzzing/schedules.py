"""Random schedules, and solvers' schedules that were spoilt: both replays say the same of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from memplan.graphs.errors import MemplanError
from memplan.graphs.files.files import save_graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.file import load_schedule, save_schedule
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from odd_graphs import odd_graph, odd_machine
from random_schedules import random_initial, random_schedule, spoil
from small_offload import small_case
from strategies import Case, random_case
from two_replays import disagreement, judged

from .area import Area, Fault, Verdict
from .shrink import without

MAKERS = (
    "store-all",
    "chen-sqrt",
    "l2l",
    "greedy-star",
    "zero-offload",
    "zero-infinity",
    "tw-remat",
    "lohan",
)


class Schedules(Area):
    name = "schedules"

    def make(self, random: Random) -> Case:
        kind = random.random()
        if kind < 0.6:
            peers, shared = random.random() < 0.4, random.random() < 0.2
            memories = random.choice((3, 3, 3, 2, 4, 5))
            return random_case(random, random.randint(3, 14), memories, peers=peers, shared=shared)
        if kind < 0.8:
            graph = odd_graph(random)
            if not len(graph.operations) or not len(graph.tensors):
                return random_case(random)
            machine = odd_machine(random)
            initial = random_initial(random, graph, machine)
            return Case(graph, random_schedule(random, graph, machine, initial), None, machine)
        return _spoilt(random)

    def judge(self, case: Case) -> Verdict:
        difference = disagreement(case)
        refused = isinstance(judged(case), InvalidScheduleError)
        counts = {"refused" if refused else "accepted": 1}
        faults = [] if difference is None else [Fault("the replays differ", difference)]
        return Verdict(faults, counts)

    def smaller(self, case: Case) -> Iterator[Case]:
        for steps in without(list(case.schedule)):
            yield case._replace(schedule=Schedule.of(steps, case.schedule.initial))
        if case.budget is not None:
            yield case._replace(budget=None)
        if case.machine is not None:
            yield case._replace(machine=Machine(links=case.machine.links))

    def write(self, case: Case, folder: Path, fault: Fault | None) -> list[str]:
        save_graph(case.graph, folder / "graph.json")
        modes = case.graph.operations.modes
        if any(
            step.verb == Verb.COMPUTE and step.where > len(modes.get(step.target, ()))
            for step in case.schedule
        ):
            return ["# a mode that is not there: no schedule file can name it"]
        save_schedule(
            folder / "schedule.json", case.graph, case.schedule, budget=case.budget, machine=case.machine
        )
        load_schedule(folder / "schedule.json", case.graph)
        return ["plan check schedule.json --graph graph.json"]


def _spoilt(random: Random) -> Case:
    """A solver's schedule on a small training graph; with faults at most times."""
    small = small_case(random.randrange(10**6))
    budget = random.randint(small.budget, max(small.budget, baseline(small.graph).peak))
    schedule = None
    for solver in random.sample(MAKERS, len(MAKERS)):
        try:
            problem = Problem(small.graph, budget, small.machine)
            schedule = registry.solve(solver, problem, 0.5, bound_seconds=0).schedule
            break
        except MemplanError:
            continue
    if schedule is None:
        return random_case(random)
    steps = list(schedule)
    if random.random() < 0.8:
        steps = spoil(random, small.graph, steps)
    limit = random.choice((None, budget, budget - 1))
    return Case(small.graph, Schedule.of(steps, schedule.initial), limit, small.machine)


AREA = Schedules()
