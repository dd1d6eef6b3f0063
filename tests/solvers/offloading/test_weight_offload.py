"""offload-greedy, greedy-star and l2l: against exhaustive search, closed forms, and the published table.

The replay in compiled code is compared with the simulator on random orders, most of them invalid.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
from exact_offload import optimum
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.annealing import seed
from memplan.solvers.offloading.cycles.cycle import FROZEN, cycle_of
from memplan.solvers.offloading.cycles.facts import facts_of, scratch
from memplan.solvers.offloading.cycles.replay import period
from memplan.solvers.offloading.cycles.steps import schedule_of_order
from memplan.solvers.offloading.weight_offload.anneal import neighbour
from memplan.solvers.offloading.weight_offload.least import least_busy_intervals
from memplan.solvers.offloading.weight_offload.offload_greedy import Settings, solve
from memplan.solvers.offloading.weight_offload.packing import fill
from memplan.solvers.offloading.weight_offload.selection import SelectionRule, chosen_intervals
from memplan.solvers.offloading.weight_offload.starts import lazy_order
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, Status
from memplan.solvers.registry import run as registry
from weights_only import weights_only

SOLVERS = ["offload-greedy", "greedy-star", "l2l"]
ROWS = 15


def small(number: int, layers: tuple[int, ...] = (2, 3, 4)) -> Problem:
    random = Random(number)
    kind = random.choice(("plain", "plain", "frozen", "tied"))
    count = random.choice(layers)
    graph = weights_only(random, count, frozen=0.4 * (kind == "frozen"), tied=kind == "tied" and count > 2)
    machine = Machine(links=Links(d2h=random.choice((0.5, 1, 2, 3)), h2d=random.choice((0.5, 1, 2, 3))))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, low + round((high - low) * random.choice((0.0, 0.15, 0.3, 0.5, 0.7))), machine)


def seconds(solver: str, problem: Problem, **settings: str) -> float:
    """∞ where it refuses the budget."""
    try:
        return registry.solve(solver, problem, settings=settings, bound_seconds=0).figures.time
    except InfeasibleError:
        return inf


@pytest.mark.scripts
def test_small_instances_against_exhaustive_search() -> None:
    """Never below the optimum, equal to it in 95 % at least; the baselines are never below either."""
    equal = compared = 0
    for number in range(36):
        problem = small(number)
        assert problem.machine
        best = optimum(problem.graph, problem.machine, problem.budget, states=2_000)
        found = seconds("offload-greedy", problem, moves="5000")
        assert best.period * (1 - 1e-9) <= found or not best.proven
        compared += best.proven
        equal += best.proven and found <= best.period * (1 + 1e-9)
        if best.proven:
            for solver in SOLVERS[1:]:
                assert seconds(solver, problem) >= best.period * (1 - 1e-9)
    assert compared >= 15
    assert equal >= 0.95 * compared


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(12))
def test_the_replay_says_what_the_simulator_says(number: int) -> None:
    """Along a random walk over orders: the same period, and a refusal where it refuses."""
    problem = small(number, (3, 4, 5, 6))
    graph, machine = problem.graph, problem.machine
    cycle = cycle_of("test", problem)
    facts = facts_of(cycle)
    turn = scratch(facts)
    order = np.array(lazy_order(cycle, range(len(cycle.intervals))), np.int64)
    seed(number)
    held = 0
    for _ in range(300):
        after = neighbour(facts, order, 2**62)
        if not len(after):
            continue
        seconds = period(facts, after, turn)
        if seconds < inf:
            order = after
            held += 1
            figures = simulate(
                graph, schedule_of_order(cycle, order.tolist()), budget=problem.budget, machine=machine
            ).figures
            assert figures.time == pytest.approx(seconds, rel=1e-6)
            assert figures.peak <= problem.budget
    assert held or cycle.limit < baseline(graph).peak


@pytest.mark.parametrize("number", range(8))
def test_an_order_that_is_refused_for_memory_does_not_simulate(number: int) -> None:
    problem = small(number, (3, 4, 5))
    cycle = cycle_of("test", problem)
    order = lazy_order(cycle, range(len(cycle.intervals)))
    schedule = schedule_of_order(cycle, order)
    least = simulate(problem.graph, schedule, machine=problem.machine).figures.least_budget
    for limit in (least - 1, least):
        facts = facts_of(replace(cycle, limit=limit))
        holds = period(facts, np.array(order, np.int64), scratch(facts)) < inf
        assert holds == (limit == least)
    with pytest.raises(InvalidScheduleError, match="capacity"):
        simulate(problem.graph, schedule, budget=least - 1, machine=problem.machine)


# ── closed forms ────────────────────────────────────────────────────────────────────────────────


def identical(layers: int, weight: int, forward: int, backward: int) -> Graph:
    """A chain of equal layers, activations without bytes."""
    draft = Draft(f"alike-{layers}")
    x = [draft.tensor("x0", 0, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", weight, Kind.PARAMETER) for i in range(layers)]
    for i, w in enumerate(weights):
        x.append(draft.tensor(f"x{i + 1}", 0))
        draft.operation(f"F{i}", time=forward, reads=[x[i], w], writes=[x[-1]])
    gradient = x[-1]
    for i in reversed(range(layers)):
        made, below = draft.tensor(f"dw{i}", weight, Kind.PARAMETER_GRADIENT), draft.tensor(f"g{i}", 0)
        reads = [gradient, weights[i], x[i]]
        draft.operation(f"B{i}", time=backward, reads=reads, writes=[made, below], phase=Phase.BACKWARD)
        draft.operation(f"U{i}", time=0, reads=[made], mutates=[weights[i]], phase=Phase.UPDATE)
        gradient = below
    return draft.graph()


@pytest.mark.parametrize("layers", [2, 3, 7, 12])
def test_l2l_takes_the_time_of_the_formula(layers: int) -> None:
    """Σ u + 2 Σ |w| / β, less the fetches that the first and the last layer don't need."""
    problem = Problem(identical(layers, 12, 1, 3), 30, Machine(links=Links(d2h=6.0, h2d=6.0)))
    found = registry.solve("l2l", problem, bound_seconds=0)
    assert found.figures.time == pytest.approx(4 * layers + 2 * (layers - 1) * 2.0)


@pytest.mark.parametrize("layers", [4, 9])
def test_with_fast_links_nothing_waits(layers: int) -> None:
    problem = Problem(
        identical(layers, 12, 1, 3), 12 * (layers // 2 + 3), Machine(links=Links(d2h=50, h2d=50))
    )
    found = registry.solve("offload-greedy", problem)
    assert found.figures.time == 4 * layers
    assert found.status == Status.OPTIMAL


@pytest.mark.scripts
def test_the_published_choice_is_one_variant_or_a_refusal() -> None:
    """It never beats the best of several, and where it finds nothing the others may."""
    pairs = [
        [seconds("offload-greedy", small(number), choice=choice) for choice in ("best", "published")]
        for number in range(60)
    ]
    assert all(best <= published * (1 + 1e-9) for best, published in pairs)
    assert any(published == inf > best for best, published in pairs)
    assert any(inf > published > best for best, published in pairs)
    with pytest.raises(InputError, match="choice must be best or published"):
        registry.solve("offload-greedy", small(0), settings={"choice": "own"})


def test_the_discount_saves_the_second_copy() -> None:
    """greedy-star copies a weight to the host before each offload interval, offload-greedy once a version."""
    problem = Problem(identical(8, 12, 1, 3), 48, Machine(links=Links(d2h=2, h2d=2)))
    offloads: list[int] = []
    for solver in ("offload-greedy", "greedy-star"):
        schedule = registry.solve(solver, problem, bound_seconds=0).schedule
        moved = schedule.targets[schedule.verbs == Verb.OFFLOAD].tolist()
        offloads.append(max(moved.count(x) for x in moved))
    assert offloads == [1, 2]


def test_a_frozen_weight_is_never_copied_to_the_host() -> None:
    graph = weights_only(Random(5), 5, frozen=1.0)
    machine = Machine(links=Links(d2h=1, h2d=1))
    problem = Problem(graph, minimum_memory(graph, machine), machine)
    cycle = cycle_of("test", problem)
    assert {interval.version for interval in cycle.intervals} == {FROZEN}
    for solver in SOLVERS:
        schedule = registry.solve(solver, problem, bound_seconds=0).schedule
        assert Verb.OFFLOAD not in schedule.verbs
        assert Verb.PREFETCH in schedule.verbs


def test_a_cycle_where_nothing_can_leave_has_no_moves() -> None:
    problem = small(0, (4, 5, 6, 9))
    facts = facts_of(replace(cycle_of("test", problem), intervals=()))
    seed(0)
    order = np.arange(len(facts.seconds))
    assert all(len(neighbour(facts, order, 2**62)) == 0 for _ in range(50))


@pytest.mark.parametrize("number", range(20))
def test_what_is_chosen_suffices_by_list_order(number: int) -> None:
    """After Algorithm 1, and after the integer program: at every run what is there fits."""
    problem = small(number, (4, 5, 6, 9))
    cycle = cycle_of("test", problem)
    for chosen in (chosen_intervals(cycle, SelectionRule(0.0)), least_busy_intervals(cycle, 0.0, 2.0)):
        for run in range(cycle.runs if chosen is not None else 0):
            offloaded = {
                cycle.intervals[number].weight
                for number in chosen or ()
                if any(run in stretch for stretch in cycle.covered(cycle.intervals[number]))
            }
            assert not offloaded.intersection(cycle.used_by[run])
            there = sum(size for weight, size in enumerate(cycle.sizes) if weight not in offloaded)
            assert cycle.need[run] + there <= cycle.limit


@pytest.mark.parametrize("number", range(30))
def test_bins_are_filled_exactly_or_not_at_all(number: int) -> None:
    random = Random(number)
    bins = [random.randint(5, 12) for _ in range(random.randint(1, 5))]
    sizes: list[int] = []
    for size in bins:
        while size:
            sizes.append(random.randint(1, size))
            size -= sizes[-1]
    random.shuffle(sizes)
    groups = fill(sizes, bins, 5.0)
    assert groups is not None
    assert [sum(group) for group in groups] == bins
    assert sorted(x for group in groups for x in group) == sorted(sizes)
    assert fill([7, 7, 7], [14, 7], 5.0)
    assert fill([5, 5, 5, 6], [11, 10], 5.0)
    assert fill([4, 4, 4], [6, 6], 5.0) is None
    assert fill([4, 4], [9], 5.0) is None


# ── the published table ─────────────────────────────────────────────────────────────────────────


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", range(ROWS))
def test_table_1_reaches_the_bound(row: int, public: Path) -> None:
    """Published: 0.04 to 1.9 % above, Greedy* 0.04 to 2.4 %. The greedy alone, no search; l2l is the
    formula's less two copies."""
    folder = public / "weight-offload"
    figures = json.loads((folder / "table1_results.json").read_text())[row]
    graph = load_graph(folder / f"{figures['name']}.graph.json.gz")
    assert graph.machine
    assert graph.machine.device_capacity
    problem = Problem(graph, graph.machine.device_capacity)
    found = registry.solve("offload-greedy", problem, settings={"moves": "0"})
    assert found.figures.time == pytest.approx(figures["sum_u"] / 1000, rel=1e-9)
    assert found.status == Status.OPTIMAL
    assert found.figures.peak <= graph.machine.device_capacity
    published = registry.solve("offload-greedy", problem, settings={"choice": "published"}, bound_seconds=0)
    assert found.figures.time * (1 - 1e-9) <= published.figures.time <= 1.05 * found.figures.time
    star = registry.solve("greedy-star", problem, bound_seconds=0)
    assert found.figures.time * (1 - 1e-9) <= star.figures.time <= 1.01 * found.figures.time
    l2l = registry.solve("l2l", problem, bound_seconds=0)
    assert l2l.figures.time == pytest.approx(figures["l2l_formula"] / 1000, rel=0.01)
    assert l2l.figures.time <= figures["l2l_formula"] / 1000


# ── refusals, limits ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("solver", SOLVERS)
def test_refusals(solver: str) -> None:
    graph = identical(5, 12, 1, 3)
    links = Links(d2h=2, h2d=2)
    with pytest.raises(NotAcceptedError, match=f"{solver} needs a machine with links d2h and h2d"):
        registry.solve(solver, Problem(graph, 48))
    with pytest.raises(NotAcceptedError, match="where 5 bytes are free for them"):
        registry.solve(solver, Problem(graph, 40, Machine(host_capacity=5, links=links)))
    with pytest.raises(InfeasibleError, match="smallest budget") as refusal:
        registry.solve(solver, Problem(graph, 20, Machine(links=links)))
    assert refusal.value.least == 24
    found = registry.solve(solver, Problem(graph, 24, Machine(links=links)), bound_seconds=0)
    assert found.figures.peak <= 24
    bare = Draft("bare")
    bare.operation("F", time=1, writes=[bare.tensor("x", 5)])
    with pytest.raises(NotAcceptedError, match="bare has none"):
        registry.solve(solver, Problem(bare.graph(), 3, Machine(links=links)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_plain_schedule_where_it_fits(solver: str) -> None:
    graph = identical(5, 12, 1, 3)
    found = registry.solve(solver, Problem(graph, 72, Machine(links=Links(d2h=2, h2d=2))))
    assert (found.figures.time, found.status) == (20, Status.OPTIMAL)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_host_holds_all_that_is_moved(solver: str) -> None:
    """Or is refused in one line; never a schedule that does not hold."""
    graph = identical(8, 12, 1, 3)
    held = 0
    for capacity in (12, 24, 36, 48, 60, 96):
        machine = Machine(host_capacity=capacity, links=Links(d2h=2, h2d=2))
        settings = {"moves": "3000"} if solver == "offload-greedy" else {}
        try:
            found = registry.solve(solver, Problem(graph, 84, machine), settings=settings, bound_seconds=0)
        except NotAcceptedError:
            assert not held
            continue
        held += 1
        assert found.figures.host_peak <= capacity
    assert held


def test_the_same_seed_gives_the_same_schedule_and_the_time_limit_holds() -> None:
    problem = Problem(identical(8, 12, 1, 3), 48, Machine(links=Links(d2h=2, h2d=2)))
    first, second = (solve(problem, Options(settings=Settings(moves=3000, seed=7))) for _ in range(2))
    assert list(first.schedule) == list(second.schedule)
    limited = registry.solve("offload-greedy", problem, time_limit=0.5)
    assert limited.seconds < 3
    with pytest.raises(InputError):
        Settings(moves=-1)
    with pytest.raises(InputError):
        Settings(seed=-1)


def test_an_answer_that_is_wanted_at_once() -> None:
    problem = Problem(identical(8, 12, 1, 3), 48, Machine(links=Links(d2h=2, h2d=2)))
    answer = solve(problem, Options(cancelled=lambda: True))
    assert simulate(problem.graph, answer.schedule, budget=48, machine=problem.machine).figures.time < inf
