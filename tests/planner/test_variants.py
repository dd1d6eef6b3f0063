"""Variants that a machine can't run cost no schedule; no minimum is above the exact one, by any links."""

from __future__ import annotations

from random import Random

import pytest
from exact_memories import least_bytes
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.variants import runnable, uses_host
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

LINKS = [Links(), Links(d2h=1), Links(h2d=1), Links(1, 1)]
LEAST_EXACT = 0.6
"""The least share of problems in which the minimum is exact."""


def with_hosts(random: Random, most: int) -> Graph:
    """Up to so many operations, with variants that run on the host, read and write there, or write less."""
    draft = Draft("hosts")
    persistent = [
        draft.tensor(f"p{k}", random.randint(1, 6), random.choice((Kind.PARAMETER, Kind.OPTIMIZER_STATE)))
        for k in range(random.randint(1, 2))
    ]
    there, made = [draft.tensor("x", random.randint(0, 2), Kind.INPUT), *persistent], list[int]()
    for number in range(random.randint(2, most)):
        writes = [draft.tensor(f"a{number}", random.randint(1, 5))] if random.random() < 0.8 else []
        mutates = [p for p in persistent if number and random.random() < 0.35]
        reads = [x for x in random.sample(there, random.randint(1, 2)) if x not in mutates]
        draft.operation(
            f"o{number}",
            time=1,
            reads=reads,
            writes=writes,
            mutates=mutates,
            workspace=random.choice((0, 0, 1, 3)),
            recompute=random.random() < 0.5 and not mutates,
            modes=[_mode(random, k, reads, writes) for k in range(random.choice((0, 1, 1, 2)))],
        )
        there, made = [*there, *writes], [*made, *writes]
    graph = draft.graph(_some(random, made, 0.4))
    validate(graph)
    return graph


def _mode(random: Random, number: int, reads: list[int], writes: list[int]) -> Mode:
    kind, made = random.random(), tuple(writes)
    if kind < 0.45:
        return Mode(f"host{number}", 1, 0, made, on_host=True)
    if kind < 0.75:
        below = _some(random, writes, 0.5)
        return Mode(f"direct{number}", 1, 1, made, reads_host=_some(random, reads, 0.7), writes_host=below)
    return Mode(f"device{number}", 1, 0, made)


def _some(random: Random, tensors: list[int], share: float) -> tuple[int, ...]:
    return tuple(x for x in tensors if random.random() < share)


@pytest.mark.parametrize("links", LINKS, ids=["none", "down", "up", "both"])
@pytest.mark.parametrize(
    ("most", "count"), [(3, 8), pytest.param(4, 150, marks=pytest.mark.exhaustive)], ids=["small", "all"]
)
def test_what_is_left_out_costs_nothing_and_the_minimum_holds(links: Links, most: int, count: int) -> None:
    exact = lost = 0
    for seed in range(count):
        random = Random(seed)
        graph = with_hosts(random, most)
        machine = Machine(links=links, host_capacity=random.choice((None, None, None, 0, 3, 8)))
        least, minimum = least_bytes(graph, machine), minimum_memory(graph, machine)
        assert least is not None
        assert minimum <= least, seed
        kept = runnable(graph, machine)
        if kept is not graph:
            lost += 1
            assert least_bytes(kept, machine) == least, seed
        exact += minimum == least
    assert exact >= LEAST_EXACT * count
    assert lost or links == LINKS[-1]


def adam(layers: int = 3) -> Graph:
    graph = chain(layers, seed=1, parameters=True)
    return with_updates(graph, optimizer=ADAMW, when="in-backward", device_rate=1e6, host_rate=1e5)


def test_without_links_no_update_runs_on_the_host() -> None:
    """States and weights can't leave, so they are of the minimum that a refusal names."""
    graph = adam()
    assert uses_host(graph)
    assert not uses_host(runnable(graph))
    assert runnable(graph, Machine(links=Links(1.0, 1.0))) is graph
    resident, budget = graph.resident_bytes, graph.resident_bytes - 1
    assert resident < minimum_memory(graph) <= baseline(graph).peak
    for solver in ("store-all", "checkmate", "rotor"):
        with pytest.raises(InfeasibleError) as caught:
            registry.solve(solver, Problem(graph, budget), 0.5, bound_seconds=0)
        assert caught.value.proven_infeasible, solver
        assert caught.value.min_memory > resident


def test_a_variant_that_cannot_run_changes_no_answer() -> None:
    """Solvers and bounds see the graph without it: schedules in traced order, and bounds, are as proven."""
    graph, alone = adam(), runnable(adam())
    budget = (minimum_memory(graph) + baseline(graph).peak) // 2
    for solver in ("rotor", "checkmate"):
        with_them, without = (registry.solve(solver, Problem(each, budget), 1.0) for each in (graph, alone))
        assert with_them.figures == without.figures
        assert with_them.lower_bound == without.lower_bound


def test_an_update_runs_on_the_host_without_links_if_its_gradient_is_made_there() -> None:
    """A state that only the update touches is on the host, and the gradient is written there."""
    draft = Draft("direct")
    x, state = draft.tensor("x", 1, Kind.INPUT), draft.tensor("s", 100, Kind.OPTIMIZER_STATE)
    g = draft.tensor("g", 10, Kind.PARAMETER_GRADIENT)
    below = Mode("below", 1, 0, (g,), writes_host=(g,))
    draft.operation("B", time=1, reads=[x], writes=[g], modes=[below], phase=Phase.BACKWARD)
    on_cpu = Mode("cpu", 1, 0, (), on_host=True)
    draft.operation("U", time=1, reads=[g], mutates=[state], modes=[on_cpu], phase=Phase.UPDATE)
    graph = draft.graph([])
    assert runnable(graph) is graph
    assert minimum_memory(graph) == least_bytes(graph) == 1
    for machine in (Machine(host_capacity=109), Machine(unpinned=True)):
        assert 1 not in runnable(graph, machine).operations.modes
        assert minimum_memory(graph, machine) == 1 + 100 + 10
