"""Graphs with collectives on a queue of their own: what solvers make of them, and that bounds hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.lower_bounds import lower_bounds, prove
from memplan.solvers.clock import Clock
from memplan.solvers.early_collectives import with_early_collectives
from memplan.solvers.offloading.joint import joint
from memplan.solvers.problem import Bound, InfeasibleError, Options, Problem, SolverResult, Status
from memplan.solvers.registry.run import solve
from memplan.solvers.skipped import INTERNAL_ERROR
from sharded_layers import gathered_layers
from small_graphs import small_graph
from strategies import with_comm

SAME = 1 + 1e-9


def test_all_collectives_but_the_first_and_last_are_hidden() -> None:
    """Each takes as long as a layer's forward: only the first and the last have nothing alongside."""
    graph = gathered_layers(6, 1.0, 1.0)
    assert baseline(graph).time == 6 * (1 + 1) + 6 * (2 + 1)
    found = solve("auto", Problem(graph, 1000), time_limit=4)
    assert found.figures.time == 1 + 6 + 12 + 1
    assert found.lower_bound == 18 == time_bound(graph)


def test_a_slow_network_is_the_bound() -> None:
    graph = gathered_layers(4, 10.0, 1.0)
    found = solve("store-all", Problem(graph, 1000))
    assert found.lower_bound == 80 == time_bound(graph)
    assert found.figures.time == pytest.approx(80, rel=0.05)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [1.0, 0.8, 0.6, 0.5])
def test_memory_is_not_exceeded_for_it(share: float) -> None:
    graph = gathered_layers(5, 1.0, 1.0)
    budget = max(int(share * baseline(graph).peak), minimum_memory(graph))
    found = solve("auto", Problem(graph, budget), time_limit=2)
    alone = solve("auto", Problem(on_one_queue(graph), budget), time_limit=1)
    assert simulate(graph, found.schedule, budget=budget).figures == found.figures
    assert found.figures.time < alone.figures.time
    assert (found.lower_bound or 0.0) <= found.figures.time


def test_gathers_stay_where_there_is_no_memory_for_more() -> None:
    """With the baseline's own minimum memory and no recomputation its order stays."""
    graph = gathered_layers(4, 1.0, 1.0)
    operations = replace(graph.operations, recompute=graph.operations.recompute & False)
    graph = replace(graph, operations=operations)
    schedule = baseline_schedule(graph)
    for budget in (baseline(graph).peak, baseline(graph).peak + 4, 1000):
        moved = with_early_collectives(graph, schedule, budget, Clock(None))
        figures = simulate(graph, moved, budget=budget).figures
        assert figures.peak <= budget
        assert figures.time <= baseline(graph).time
    assert simulate(graph, with_early_collectives(graph, schedule, 1000, Clock(None))).figures.time == 14
    ended = with_early_collectives(graph, schedule, 1000, Clock(0.0))
    assert list(ended) == list(schedule)


# ── bounds, against enumeration ─────────────────────────────────────────────────────────────────────


def every_sequence(graph: Graph, random: Random, most: int) -> Iterator[list[tuple[int, int]]]:
    """Yield orders of the operations, and some of them with one recomputed; of long graphs a sample."""
    count = len(graph.operations)
    runs = list(range(count))
    orders = permutations(runs) if count <= 5 else (random.sample(runs, count) for _ in range(most))
    for order in orders:
        yield [(operation, 0) for operation in order]
        again = list(order)
        again.insert(random.randint(0, count), random.choice(runs))
        yield [(operation, 0) for operation in again]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(4))
def test_no_schedule_is_below_a_bound_and_solvers_are_above_it(batch: int) -> None:
    checked = 0
    for seed in range(40 * batch, 40 * batch + 40):
        random = Random(seed)
        graph = with_comm(random, small_graph(random), 0.8)
        if not graph.operations.comm or len(graph.operations) > 6:
            continue
        budget = minimum_memory(graph) + random.randint(0, 4)
        problem = Problem(graph, budget)
        found = lower_bounds(problem, baseline_schedule(graph), baseline(graph).time, 2.0)
        told = list[Bound]()
        prove(problem, told.append, 1.0, lambda: False)
        general = max(bound.seconds for bound in (*found, *told) if bound.general)
        best = None
        for runs in every_sequence(graph, random, 200):
            try:
                time = simulate(graph, schedule_of(graph, runs), budget=budget).figures.time
            except InvalidScheduleError:
                continue
            assert general <= time * SAME, seed
            best = time if best is None else min(best, time)
        try:
            answer = solve("search", problem, time_limit=1.0, bound_seconds=1.0)
        except InfeasibleError:
            continue
        assert (answer.lower_bound or 0.0) <= answer.figures.time * SAME, seed
        if best is not None:
            assert (answer.lower_bound or 0.0) <= best * SAME, seed
            assert answer.status is not Status.OPTIMAL or answer.figures.time <= best * (1 + 1e-6), seed
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("name", ["store-all", "torch-partitioner", "search", "checkmate", "moccasin"])
def test_each_solver_takes_such_a_graph(name: str) -> None:
    """It solves it on one queue; the time is the simulator's, which is no longer than there."""
    graph = gathered_layers(3, 1.0, 1.0)
    budget = baseline(graph).peak
    alone = solve(name, Problem(on_one_queue(graph), budget), time_limit=2)
    found = solve(name, Problem(graph, budget), time_limit=4)
    assert found.figures == simulate(graph, found.schedule, budget=budget).figures
    assert found.figures.time <= alone.figures.time * SAME
    assert (found.lower_bound or 0.0) <= found.figures.time


@pytest.mark.scripts
def test_with_links_tensors_are_offloaded_too() -> None:
    graph, machine = gathered_layers(4, 1.0, 1.0), Machine(links=Links(4.0, 4.0))
    budget = int(0.7 * baseline(graph).peak)
    found = solve("auto", Problem(graph, budget, machine), time_limit=4)
    checked = simulate(graph, found.schedule, budget=budget, machine=machine).figures
    assert checked == found.figures
    assert (found.lower_bound or 0.0) <= checked.time


def test_a_start_is_never_made_slower() -> None:
    graph = gathered_layers(4, 1.0, 1.0)
    start = with_early_collectives(graph, baseline_schedule(graph), 1000, Clock(None))
    found = solve("store-all", Problem(graph, 1000), start=start)
    assert found.figures.time <= simulate(graph, start).figures.time * SAME


def test_a_search_whose_schedule_breaks_a_rule_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before it stands, and a note names the rule."""
    graph, machine = gathered_layers(4, 1.0, 1.0), Machine(links=Links(4.0, 4.0))
    problem = Problem(graph, int(0.7 * baseline(graph).peak), machine)

    def broken(_problem: Problem, _options: Options, known: Sequence[tuple[Schedule, float]]) -> SolverResult:
        whole = known[0][0]
        rest = Schedule(whole.verbs[1:], whole.targets[1:], whole.wheres[1:], whole.initial)
        return SolverResult(rest, Status.HEURISTIC)

    monkeypatch.setattr(joint, "overlapped", broken)
    found = solve("joint", problem, settings={"moves": "2"}, bound_seconds=0)
    assert simulate(graph, found.schedule, budget=problem.budget, machine=machine).figures == found.figures
    (note,) = found.notes
    assert note.startswith(f"{INTERNAL_ERROR}joint made a schedule that breaks the rule")


def test_addresses_are_refused() -> None:
    with pytest.raises(InputError, match="give the collectives the queue compute"):
        solve("store-all", Problem(gathered_layers(2, 1.0, 1.0), 1000), addresses=True)
    alone = on_one_queue(gathered_layers(2, 1.0, 1.0))
    assert solve("store-all", Problem(alone, 1000), addresses=True).layout is not None


def test_what_cannot_fit_is_said_in_one_line() -> None:
    graph = gathered_layers(3, 1.0, 1.0)
    with pytest.raises(InfeasibleError, match="no schedule within"):
        solve("auto", Problem(graph, minimum_memory(graph) - 1), time_limit=2)


def test_runs_stay_the_solvers() -> None:
    graph = gathered_layers(4, 1.0, 1.0)
    schedule = baseline_schedule(graph)
    moved = with_early_collectives(graph, schedule, 1000, Clock(None))
    runs = [sorted(one.targets[one.verbs == Verb.COMPUTE].tolist()) for one in (schedule, moved)]
    assert runs[0] == runs[1]
