"""GO-MemFerry: gradients that are written to the host, and those that stay on the device."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from direct_access import with_direct_access, with_direct_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import SGD, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.links import linked_machine
from memplan.solvers.offloading.memferry import memferry
from memplan.solvers.offloading.memferry.gradients import gradient_layers
from memplan.solvers.offloading.memferry.plan import Plan
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, SolverResult
from training_graphs import training

MiB = 2**20


def machine(rate: float) -> Machine:
    return Machine(links=Links(d2h=rate, h2d=rate))


def problem_of(layers: int, seed: int, rate: float, rewrites: float = 1.0) -> Problem:
    """A chain with all modes for direct access, updates on the CPU too, and room for all."""
    graph = with_updates(
        chain(layers, seed=seed), optimizer=SGD, when="in-backward", device_rate=MiB, host_rate=4 * MiB
    )
    graph = with_direct_gradients(with_direct_access(graph, rate), rate, rewrites=rewrites)
    return Problem(graph, 2 * baseline(graph).peak, machine(rate))


def gradients_of(graph: Graph) -> set[int]:
    return {x for x, kind in enumerate(graph.tensors.kind) if kind == Kind.PARAMETER_GRADIENT}


def solved(problem: Problem, **chosen: str | float) -> SolverResult:
    return memferry.solve(problem, Options(None, memferry.Settings(**{"flips": 5, **chosen})))


def test_written_gradients_are_never_on_the_device() -> None:
    problem = problem_of(4, 1, MiB)
    graph, gradients = problem.graph, gradients_of(problem.graph)
    for weights in (True, False):
        asked = problem if weights else replace(problem, graph=without_reads(graph))
        answer = solved(asked, gradients="direct")
        steps = list(answer.schedule)
        assert not any(step.verb > Verb.DELETE and step.target in gradients for step in steps)
        below = [
            x
            for step in steps
            if step.verb == Verb.COMPUTE
            for x in asked.graph.made_on_host(step.target, step.where)
        ]
        assert sorted(below) == sorted(gradients)
        copied = solved(asked, gradients="copied")
        assert {step.target for step in copied.schedule if step.verb == Verb.OFFLOAD} >= gradients


def without_reads(graph: Graph) -> Graph:
    """Without the modes that read weights on the host."""
    modes = {o: tuple(mode for mode in of if not mode.reads_host) for o, of in graph.operations.modes.items()}
    return replace(graph, operations=replace(graph.operations, modes=modes))


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    reserve=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
    tied=st.booleans(),
)
def test_what_is_kept_saves_the_most_seconds(layers: int, seed: int, reserve: float, tied: bool) -> None:
    """Against every choice of layers, by the seconds of all computations; tied weights have one gradient."""
    if tied:
        graph = with_direct_gradients(training(layers, seed), 50.0, rewrites=2.0)
        problem = Problem(graph, 10**9, machine(50.0))
    else:
        problem = problem_of(layers, seed, 0.2 * MiB, rewrites=3.0)
        graph = problem.graph
    linked = linked_machine("a solver", problem, "gradients")
    found = gradient_layers(graph)
    assert sorted(x for layer in found for x in layer.gradients) == sorted(gradients_of(graph))
    assert all(layer.direct for layer in found)
    runs = in_default_mode(
        o for o in range(len(graph.operations)) if graph.operations.phase[o] < Phase.UPDATE
    )
    plan = Plan("a solver", graph, linked, runs, reserve=reserve, direct=True)
    seconds = [graph.seconds(*run) for run in plan.runs]
    room = int(reserve * sum(layer.size for layer in found))
    best = min(
        sum(seconds_of(graph, layer.producers, kept) for layer, kept in zip(found, choice, strict=True))
        for choice in product((True, False), repeat=len(found))
        if sum(layer.size for layer, kept in zip(found, choice, strict=True) if kept) <= room
    )
    producers = {o for layer in found for o in layer.producers}
    own = sum(time for time, (o, _mode) in zip(seconds, plan.runs, strict=True) if o in producers)
    assert own == pytest.approx(best, rel=1e-9)


def seconds_of(graph: Graph, producers: tuple[int, ...], kept: bool) -> float:
    """kept: gradients on the device."""
    return sum(graph.seconds(o, 0 if kept else 1 + names(graph, o).index("go")) for o in producers)


def names(graph: Graph, operation: int) -> list[str]:
    return [mode.name for mode in graph.operation(operation).modes]


def test_what_is_kept_stays_to_the_end_and_the_rest_is_written() -> None:
    problem = problem_of(4, 7, 0.2 * MiB, rewrites=3.0)
    gradients = gradients_of(problem.graph)
    for reserve in (0.0, 0.5, 1.0):
        answer = solved(problem, gradients="direct", reserve=reserve)
        device = {step.target for step in answer.schedule if step.verb == Verb.OFFLOAD} & gradients
        deleted = {s.target for s in answer.schedule if s.verb == Verb.DELETE and not s.where} & gradients
        assert not deleted
        size = sum(int(problem.graph.tensors.bytes[x]) for x in device)
        assert size <= reserve * sum(int(problem.graph.tensors.bytes[x]) for x in gradients)
        assert bool(device) == (reserve > 0)


@pytest.mark.scripts
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_auto_takes_the_faster_and_needs_no_more_memory_than_either(seed: int) -> None:
    problem = problem_of(3, seed, MiB, rewrites=2.0)

    def time(budget: int, gradients: str) -> float:
        answer = solved(replace(problem, budget=budget), gradients=gradients, flips=0)
        return simulate(problem.graph, answer.schedule, budget=budget, machine=problem.machine).figures.time

    treatments = ("copied", "direct")
    roomy = problem.budget
    assert time(roomy, "auto") <= min(time(roomy, treatment) for treatment in treatments)
    least: dict[str, int] = {}
    for treatment in (*treatments, "auto"):
        with pytest.raises(InfeasibleError) as refusal:
            solved(replace(problem, budget=1), gradients=treatment)
        assert refusal.value.least is not None
        least[treatment] = refusal.value.least
    assert least["direct"] <= least["copied"]
    assert least["auto"] == min(least.values())
    assert time(least["auto"], "auto") > 0.0


def test_without_such_modes_only_copies_are_taken() -> None:
    graph = with_updates(chain(2), optimizer=SGD, when="after", device_rate=MiB, host_rate=MiB)
    problem = Problem(graph, 10**9, machine(MiB))
    solved(problem)
    with pytest.raises(
        NotAcceptedError, match=r"writes its gradients to the host \(writes_host\): --set grad"
    ):
        solved(problem, gradients="direct")
