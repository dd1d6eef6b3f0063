"""Offmate on whole graphs: what it answers holds, what it refuses it refuses for a reason."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.structure.chain import chain_of
from memplan.graphs.structure.valid_order import is_valid_order
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.schedule.schedule import Verb
from memplan.solvers.offloading.offmate.graph import updates_moved
from memplan.solvers.offloading.offmate.offmate import Settings
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem, Status, ValidatedSolution
from memplan.solvers.registry import run as registry
from training_graphs import training


def llm(blocks: int, *, when: str = "in-backward", host: float | None = 2.0, seed: int = 0) -> Graph:
    """A chain whose weights AdamW updates; on the CPU `host` times as fast as all would take an iteration."""
    graph = chain(blocks, seed=seed, uniform=not seed)
    weights = sum(graph.tensors.bytes[graph.tensors.kind == 1].tolist())
    rate = weights / float(graph.operations.time.sum())
    return with_updates(
        graph,
        optimizer=ADAMW,
        when="after" if when == "after" else "in-backward",
        device_rate=20 * rate,
        host_rate=None if host is None else host * rate,
    )


def linked(graph: Graph, speed: float, **changes: int) -> Machine:
    """Links that carry `speed` times all tensors in a plain iteration."""
    rate = speed * float(graph.tensors.bytes.sum()) / float(graph.operations.time.sum())
    return replace(Machine(links=Links(rate, rate)), **changes)


def solve(graph: Graph, machine: Machine, budget: int, **settings: str) -> ValidatedSolution:
    return registry.solve("offmate", Problem(graph, budget, machine), settings=settings, bound_seconds=0.0)


def attempt(graph: Graph, machine: Machine, budget: int) -> ValidatedSolution | InfeasibleError:
    try:
        return solve(graph, machine, budget, seconds="1")
    except InfeasibleError as refusal:
        return refusal


def random_graph(random: Random, seed: int) -> Graph:
    kind = random.randrange(5)
    if kind < 2:
        return llm(
            random.randint(1, 4),
            when=random.choice(("in-backward", "after")),
            host=random.choice((None, 0.5, 2.0)),
            seed=seed,
        )
    if kind == 2:
        return chain(random.randint(2, 4), seed=seed, fast_forward=random.random() < 0.5)
    if kind == 3:
        return unet(random.randint(1, 2), seed=seed)
    update = random.choice(("none", "end", "early"))
    return training(random.randint(1, 2), seed, skip=random.choice((0.0, 0.4)), update=update)


@pytest.mark.sampled(22)
@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    """Accepted within the budget and not below the bound, or refused with a least budget that is reached."""
    random = Random(seed)
    graph = random_graph(random, seed)
    machine = linked(graph, 10 ** random.uniform(-1, 1))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    budget = int(low + (high - low) * random.random() ** 2)
    found = attempt(graph, machine, budget)
    if isinstance(found, InfeasibleError):
        assert found.least is not None
        assert found.least > budget
        budget = found.least
        found = attempt(graph, machine, budget)
    assert isinstance(found, ValidatedSolution)
    assert found.figures.peak <= budget
    assert found.figures.time >= time_bound(graph) * (1 - 1e-9)


@pytest.mark.parametrize("when", ["in-backward", "after"])
def test_a_model_four_times_the_device_trains_at_nearly_full_speed(when: str) -> None:
    graph = llm(12, when=when)
    machine, plain = linked(graph, 3.0), baseline(graph)
    found = solve(graph, machine, plain.peak // 4, seconds="1")
    assert found.figures.time <= 1.1 * plain.time
    assert found.figures.host_peak > 0


def test_updates_on_the_cpu_are_faster_than_plain() -> None:
    """With ample memory and links they run beside the device's work."""
    graph = llm(8, host=1.0)
    plain = baseline(graph)
    found = solve(graph, linked(graph, 10.0), plain.peak, seconds="1")
    assert found.figures.time < 0.99 * plain.time
    on_host = [w for v, _o, w in found.schedule.rows() if v == Verb.COMPUTE and w]
    assert on_host


def test_without_any_need_the_plain_schedule_is_optimal() -> None:
    graph = llm(3, host=None)
    found = solve(graph, linked(graph, 1.0), baseline(graph).peak)
    assert found.status == Status.OPTIMAL
    assert found.figures.time == pytest.approx(baseline(graph).time)


def test_a_small_host_sends_states_to_the_disk() -> None:
    graph = llm(8, host=1.0)
    plain, machine = baseline(graph), linked(graph, 3.0)
    rate = machine.links.d2h
    links = replace(machine.links, disk_read=rate, disk_write=rate)
    small = replace(machine, host_capacity=plain.peak // 2, links=links)
    found = solve(graph, small, plain.peak // 3, seconds="1")
    assert found.figures.disk_peak > 0
    assert found.figures.host_peak <= plain.peak // 2


def test_all_times_are_reported() -> None:
    graph, lines = llm(4), list[str]()
    problem = Problem(graph, baseline(graph).peak // 3, linked(graph, 2.0))
    settings = {"batch": "true", "management": "0.01"}
    registry.solve("offmate", problem, settings=settings, report=lines.append, bound_seconds=0.0)
    assert any(line.startswith("batch: ") for line in lines)
    assert "by the program with fractions" in lines[-1]
    assert "simulated" in lines[-1]


@pytest.mark.parametrize("limit", [0.0, 0.05])
def test_a_time_limit_gives_what_there_is(limit: float) -> None:
    graph = llm(10)
    machine = linked(graph, 3.0)
    budget = baseline(graph).peak // 4
    found = registry.solve("offmate", Problem(graph, budget, machine), limit, bound_seconds=0.0)
    assert found.figures.peak <= budget
    assert found.status == Status.FEASIBLE


def test_updates_behind_all_move_into_the_blocks() -> None:
    graph = llm(4, when="after")
    found = chain_of(graph)
    moved = updates_moved(graph, found)
    assert found.after
    assert not moved.after
    assert is_valid_order(graph, moved.order())


def test_refusals() -> None:
    graph = llm(3)
    peak = baseline(graph).peak
    with pytest.raises(NotAcceptedError, match="needs a machine with links d2h and h2d"):
        solve(graph, Machine(), peak // 2)
    tiny_host = replace(linked(graph, 1.0), host_capacity=1000)
    with pytest.raises(NotAcceptedError, match="of host memory; the machine has 1,000 B"):
        solve(graph, tiny_host, minimum_memory(graph, tiny_host) + 1)
    rate = tiny_host.links.d2h
    tiny_both = replace(tiny_host, disk_capacity=1000, links=Links(rate, rate, rate, rate))
    with pytest.raises(NotAcceptedError, match=r"needs [1-9][\d,]{6,} B = .*; the machine has 1,000 B"):
        solve(graph, tiny_both, minimum_memory(graph, tiny_both) + 1)
    forward = layered(9, width=3)
    with pytest.raises(NotAcceptedError, match="has no backward operations"):
        solve(forward, linked(forward, 1.0), baseline(forward).peak)
    with pytest.raises(InfeasibleError):
        solve(graph, linked(graph, 1.0), 1000)


@pytest.mark.parametrize("settings", [{"options": 0}, {"blocks": 0}, {"management": -1.0}, {"seconds": -1.0}])
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be"):
        Settings(**settings)


def test_more_options_never_hurt_the_program() -> None:
    """Of the thesis' three, of greedy ones, and of integer programs: each list holds the one before."""
    graph = chain(5, seed=4, fast_forward=False)
    plain, times = baseline(graph), list[float]()
    for settings in ({"options": "1"}, {"options": "3"}, {"options": "6"}, {"options": "6", "programs": "2"}):
        lines: list[str] = []
        problem = Problem(graph, int(0.6 * plain.peak), linked(graph, 0.2))
        registry.solve("offmate", problem, settings=settings, report=lines.append, bound_seconds=0.0)
        times.append(float(lines[-1].split()[0]))
    assert times == sorted(times, reverse=True) or times == pytest.approx(
        sorted(times, reverse=True), rel=1e-3
    )
