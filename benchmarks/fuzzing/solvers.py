"""Solvers on odd graphs (odd_graphs.py), held against the rules of solver_cases.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.graphs.files.files import save_graph
from memplan.graphs.files.machine import save_machine
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from odd_graphs import odd_problem
from solver_cases import contradictions, random_problem, verdict, warm_up

from .area import Area, Fault, Verdict, judged
from .graphs import smaller_graphs

SECONDS = (0.02,) * 9 + (0.3,)
"""For each solver: one case in ten gets time to search."""

SELDOM = {
    "auto": 0.1,
    "moccasin": 0.02,
    "search": 0.3,
    "offload-greedy": 0.3,
    "joint": 0.5,
    "checkmate": 0.5,
    "rk-checkmate": 0.5,
    "offmate": 0.5,
}
"""The share of cases that a slow solver gets; the others get all."""

_RULE = re.compile(r"\[([a-z-]+): ")


class SolverCase(NamedTuple):
    """seconds: for each solver, and as much for bounds."""

    problem: Problem
    solvers: tuple[str, ...]
    seconds: float


class Solvers(Area):
    name = "solvers"
    patience = 150.0

    def __init__(self) -> None:
        self.solvers = [entry.name for entry in registry.entries()]

    def warm_up(self) -> None:
        warm_up(self.solvers)

    def make(self, random: Random) -> SolverCase:
        chosen = tuple(name for name in self.solvers if random.random() < SELDOM.get(name, 1.0))
        plain = random.random() < 0.15
        problem = random_problem(random.randrange(10**9)) if plain else odd_problem(random)
        return SolverCase(problem, chosen, random.choice(SECONDS))

    def judge(self, case: SolverCase) -> Verdict:
        faults: list[Fault] = []
        verdicts = [verdict(name, case.problem, case.seconds, case.seconds) for name in case.solvers]
        for one in verdicts:
            faults += [Fault(f"{one.solver}: {_kind(text)}", f"{one.solver}: {text}") for text in one.faults]
        faults += [
            Fault(f"{text.split()[0]} {text.split(', ')[-1].split()[0]}: contradiction", text)
            for text in contradictions(case.problem, verdicts)
        ]
        counts = {one.solver: 1 for one in verdicts}
        return Verdict(faults, {**counts, "answers": sum(one.outcome == "ok" for one in verdicts)})

    def repeat(self, case: SolverCase, fault: Fault) -> list[Fault]:
        named = fault.kind.split(":")[0].split()
        return judged(self, case._replace(solvers=tuple(s for s in case.solvers if s in named))).faults

    def smaller(self, case: SolverCase) -> Iterator[SolverCase]:
        problem = case.problem
        for graph in smaller_graphs(problem.graph):
            yield case._replace(problem=replace(problem, graph=graph))
        for machine in _plainer(problem.machine):
            yield case._replace(problem=replace(problem, machine=machine))
        low, high = minimum_memory(problem.graph, problem.machine), baseline(problem.graph).peak
        for budget in (1, low, (low + high) // 2, high - 1, high):
            if 0 < budget < problem.budget:
                yield case._replace(problem=replace(problem, budget=budget))

    def write(self, case: SolverCase, folder: Path, fault: Fault | None) -> list[str]:
        problem = case.problem
        save_graph(problem.graph, folder / "graph.json")
        words = (
            f"plan solve graph.json --budget {problem.budget}"
            f" --time-limit {case.seconds} --bound-time {case.seconds}"
        )
        if problem.machine is not None:
            save_machine(problem.machine, folder / "machine.json")
            words += " --machine machine.json"
        named = fault.kind.split(":")[0].split() if fault else case.solvers
        return [f"{words} --solver {name}" for name in case.solvers if name in named]


def _kind(text: str) -> str:
    """Of a fault in words: its type and the rule that is broken, or the words without figures and names."""
    rule = _RULE.search(text)
    if rule:
        return f"{text.split(':')[0]} {rule[1]}"
    return " ".join("#" if re.search(r"[\d'\"]", word) else word for word in text.split())[:70]


def _plainer(machine: Machine | None) -> Iterator[Machine | None]:
    if machine is not None:
        yield None
        for part in ("device_capacity", "host_capacity", "disk_capacity"):
            if getattr(machine, part) is not None:
                yield replace(machine, **{part: None})
        if machine.links.disk_read is not None or machine.links.disk_write is not None:
            yield replace(machine, links=replace(machine.links, disk_read=None, disk_write=None))
        links = {**vars(machine.links)}
        between = links.pop("peers")
        rates = Links(*(link and link.rate for link in links.values()), peers=between)
        if rates != machine.links:
            yield replace(machine, links=rates)


AREA = Solvers()
