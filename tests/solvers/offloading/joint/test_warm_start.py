"""A state that is read from a schedule takes as long as that, wherever its copies stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from joint_graphs import GRAPHS
from layered_training import training
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.residency.from_schedule import recover_residency
from memplan.planner.residency.residency import Residency
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.warm_start import opened
from memplan.solvers.problem import Options, Problem

ABOUT = 1e-6
TRAINING = training(12)
MIGRATION = Problem(TRAINING, int(baseline(TRAINING).peak * 0.35), Machine(links=Links(6.0, 6.0)))


def case(graph: Graph, seed: int, disk: bool) -> Problem:
    """Half way down to the least memory; links that take from one to eight turns for all that is there. With
    a disk the host holds a tenth of that."""
    plain = baseline(graph)
    rate = plain.peak / plain.time / 2 ** Random(seed).randint(0, 3)
    machine = Machine(links=Links(rate, rate))
    if disk:
        machine = Machine(host_capacity=plain.peak // 10, links=Links(rate, rate, rate, rate))
    return Problem(graph, (plain.peak + minimum_memory(graph, machine)) // 2, machine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
def test_a_schedule_of_joint_is_read_as_it_is(name: str, seed: int, disk: bool) -> None:
    problem = case(GRAPHS[name], seed, disk)
    answer = joint.solve(problem, Options(settings=joint.Settings(moves=5, seed=seed)))
    opening = opened(
        problem, [recover_residency(problem.graph, answer.schedule)], Drops(problem.graph), lambda: False
    )
    assert opening is not None
    state, outcome = opening
    figures = [
        simulate(problem.graph, schedule, budget=problem.budget, machine=problem.machine).figures
        for schedule in (answer.schedule, state.schedule(outcome))
    ]
    assert figures[1].time == pytest.approx(outcome.seconds, rel=ABOUT)
    assert outcome.seconds <= figures[0].time * (1 + ABOUT)


@pytest.mark.scripts
def test_without_the_places_of_reads_from_the_disk_it_often_takes_longer() -> None:
    """Where the host is small and the disk slow."""
    drops, faster, peak = Drops(TRAINING), 0, baseline(TRAINING).peak
    machine = Machine(host_capacity=peak // 10 * 4, links=Links(6.0, 6.0, 3.0, 3.0))
    problem = replace(MIGRATION, machine=machine)
    for seed in range(6):
        answer = joint.solve(problem, Options(settings=joint.Settings(moves=150, seed=seed)))
        found = recover_residency(TRAINING, answer.schedule)
        assert found.read_slots
        placed = opened(problem, [found], drops, lambda: False)
        without = opened(problem, [replace(found, read_slots={})], drops, lambda: False)
        assert placed is not None
        assert without is not None
        assert placed[1].seconds <= without[1].seconds
        faster += placed[1].seconds < without[1].seconds * 0.999
    assert faster >= 3


@pytest.mark.scripts
def test_without_its_places_it_often_takes_longer() -> None:
    """Else the places would be read for nothing."""
    drops, exact, faster = Drops(TRAINING), 0, 0
    for seed, moves in product(range(4), (20, 150)):  # those of a longer search have more places of their own
        answer = joint.solve(MIGRATION, Options(settings=joint.Settings(moves=moves, seed=seed)))
        residency = recover_residency(TRAINING, answer.schedule)
        seconds = simulate(TRAINING, answer.schedule, machine=MIGRATION.machine).figures.time
        placed = opened(MIGRATION, [residency], drops, lambda: False)
        decided = opened(MIGRATION, [Residency(residency.runs, residency.offloaded)], drops, lambda: False)
        assert placed is not None
        assert decided is not None
        assert placed[1].seconds <= min(decided[1].seconds, 1.01 * seconds)
        exact += placed[1].seconds == pytest.approx(seconds, rel=ABOUT)
        faster += placed[1].seconds < decided[1].seconds * 0.999
    assert exact >= 2
    assert faster >= 2


@pytest.mark.scripts
def test_the_fastest_is_taken_and_what_holds_nowhere_is_none() -> None:
    problem, drops = MIGRATION, Drops(MIGRATION.graph)
    found = [
        joint.solve(problem, Options(settings=joint.Settings(moves=moves))).schedule for moves in (0, 20)
    ]
    residencies = [recover_residency(problem.graph, schedule) for schedule in found]
    alone = [opened(problem, [residency], drops, lambda: False) for residency in residencies]
    best = opened(problem, residencies, drops, lambda: False)
    assert best is not None
    assert best[1].seconds == min(each[1].seconds for each in alone if each)
    assert opened(problem, [Residency(residencies[0].runs)], drops, lambda: False) is None


@pytest.mark.scripts
def test_once_time_is_over_one_that_fits_will_do() -> None:
    """The first of them, without a round of looking for where its copies stand."""
    problem, drops = MIGRATION, Drops(MIGRATION.graph)
    schedule = joint.solve(problem, Options(settings=joint.Settings(moves=20))).schedule
    residency, asked = recover_residency(problem.graph, schedule), list[int]()

    def others() -> Iterator[Residency]:
        for number in range(3):
            asked.append(number)
            yield residency

    hurried = opened(problem, others(), drops, lambda: True)
    at_leisure = opened(problem, [residency], drops, lambda: False)
    assert hurried is not None
    assert at_leisure is not None
    assert asked == [0]
    assert hurried[1].seconds >= at_leisure[1].seconds
