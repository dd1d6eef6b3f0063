"""Small graphs with schedules and certificates, and certificates with one number changed; random replays."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from fractions import Fraction
from math import inf
from random import Random
from typing import Any, NamedTuple

from exact import optimal_time
from memplan.graphs.files.files import graph_digest
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.planner.certificates import verify
from memplan.planner.report import Report
from memplan.planner.schedule.file import schedule_to_document
from memplan.planner.simulator.simulate import Figures
from memplan.solvers.bounds.certificate import certificate_of, flow_proof
from memplan.solvers.bounds.residency.residency import free_order_bound
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry
from small_graphs import small_graph
from strategies import random_case
from two_replays import judged
from wide_graphs import exact_budget, wide_graph

REFUSALS = (
    *(verify.ClaimError, verify.DocumentError, verify.SubjectError),
    *(LookupError, TypeError, AttributeError, ValueError, ArithmeticError),
)
"""What the verifier refuses by; `verify.verify` turns those of the second row into the first."""


FIGURES = ("peak", "least_budget", "host_peak", "disk_peak", "pinned_peak", "least_pinned")


def replayed(seed: int) -> str | None:
    """Return how the verifier's replay of a random schedule differs from the simulator's."""
    random = Random(seed)
    case = random_case(random, memories=random.choice((3, 3, 3, 2, 5)), shared=random.random() < 0.3)
    machine, simulated = case.machine or case.graph.machine, judged(case)
    try:
        schedule = schedule_to_document(case.graph, case.schedule, budget=case.budget, machine=machine)
    except (IndexError, KeyError):
        return None  # it names what no document can
    graph = verify.Graph(json.loads(json.dumps(graph_to_document(case.graph))))
    assert graph.sha256 == graph_digest(case.graph)
    try:
        row = json.loads(json.dumps(schedule))
        found = verify.Replay(graph, verify.Machine(row.get("machine") or {}), case.budget, row).figures
    except (verify.ClaimError, verify.DocumentError) as error:
        return None if not isinstance(simulated, Figures) else f"{simulated}: {error}"
    if not isinstance(simulated, Figures):
        return f"{simulated}: {found}"
    same = [found[name] == getattr(simulated, name) for name in FIGURES]
    near = abs(Fraction(simulated.time) - found["time"]) <= verify.SAME * found["time"]
    return None if all(same) and near else f"{simulated}: {found}"


class Certified(NamedTuple):
    """A graph with its schedule and certificate, as documents that were read from JSON."""

    graph: Graph
    budget: int
    schedule: Any
    certificate: Any
    document: Any

    def claims(self) -> list[verify.Claim]:
        return verify.verify(self.schedule, self.certificate, self.document)


def certified(graph: Graph, budget: int, solver: str = "search", seconds: float = 1.0) -> Certified | None:
    """Solve a graph, and certify the answer; None if there is none."""
    problem = Problem(graph, int(budget), graph.machine)
    try:
        solution = registry.solve(solver, problem, bound_seconds=seconds)
    except InfeasibleError:
        return None
    report = Report(solution.figures, baseline(graph), solution.lower_bound)
    schedule = schedule_to_document(
        graph,
        solution.schedule,
        budget=budget,
        machine=graph.machine or Machine(),
        predicted=report.predicted(),
    )
    certificate = certificate_of(problem, solution, schedule, seconds)
    documents = (schedule, certificate, graph_to_document(graph))
    return Certified(graph, budget, *(json.loads(json.dumps(each)) for each in documents))


def false_claims(case: Certified, optimum: float | None) -> Iterator[str]:
    """Yield proven claims that an exhaustive search, or a schedule, refutes.

    optimum: seconds below which there is no schedule, or of any schedule; None if there is none.
    """
    for claim in case.claims():
        proven = claim.least if claim.by else claim.value
        if claim.what == "lower bound (any order)" and optimum is not None:
            proven = inf if proven is None else proven
            if proven > optimum * (1 + 1e-12):
                yield f"{claim}: {optimum} s is possible"
        if claim.what == "min_memory" and not claim.by and (proven or 0) > case.schedule["predicted"]["peak"]:
            yield f"{claim}: a schedule takes less"


class Proven(NamedTuple):
    """A graph with the proof of a bound for any order. optimum: seconds; None if there is no schedule."""

    graph: Graph
    budget: int
    bound: Any
    optimum: float | None

    def fault(self) -> str | None:
        """Return what the proof proves if an exhaustive search refutes it."""
        graph = verify.Graph(graph_to_document(self.graph))
        extra = verify.recomputation(graph, self.budget, self.bound, graph.once)
        least = verify.fewest_seconds(graph) + max(0, extra)
        return None if self.optimum is None or least <= self.optimum else f"{float(least)} of {self.optimum}"


def proven(random: Random) -> Proven | None:
    """Return a proof for a random graph, at random moments and prices or the best; None if there is none."""
    graph = wide_graph(random, 7) if random.random() < 0.7 else small_graph(random)
    budget = int(exact_budget(random, graph))
    if random.random() < 0.5:
        found = free_order_bound(graph, budget, 5.0, whole=False)
        free = found.bound.seconds == inf
        prices = dict.fromkeys(found.moments, 1.0) if free else found.prices
    else:
        free = random.random() < 0.2
        moments = random.sample(range(len(graph.operations)), random.randint(1, 2))
        prices = {o: 1.0 if free else random.choice((0.1, 0.5, 1.0, 3.0)) * random.random() for o in moments}
    proof = flow_proof(graph, budget, "any", prices, free=free)
    if proof is None:
        return None
    bound = json.loads(json.dumps({"order": "any", "proof": proof}))
    return Proven(graph, int(budget), bound, optimal_time(graph, budget))


def numbers(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where numbers are, those in text too."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from numbers(value, (*path, key))
    elif not isinstance(document, bool) and (
        isinstance(document, int | float) or path[-1] in ("unit", "price")
    ):
        yield path


def changed(certificate: Any, random: Random) -> Any:
    """Return a certificate with one number changed."""
    found = copy.deepcopy(certificate)
    path = random.choice([*numbers(found)])
    row = found
    for key in path[:-1]:
        row = row[key]
    value = row[path[-1]]
    if isinstance(value, str):
        digits = [place for place, letter in enumerate(value) if letter.isdigit()]
        place = random.choice(digits)
        row[path[-1]] = value[:place] + str(random.randint(0, 9)) + value[place + 1 :]
    else:
        step = random.choice((1, -1, 2, -2, value, -value, 10**6, 10**18, -(10**9), value / 1000))
        row[path[-1]] = value + (int(step) if isinstance(value, int) and random.random() < 0.9 else step)
    return found
