"""A weight that several updates change one after another, and later operations still read: the schedules of
`joint` and `auto` hold, and the links hide what they can.

    B3 ─ds3─▶ U3: scale    B2 reads scale ─ds2─▶ U2: scale    B1 reads scale ─ds1─▶ U1: scale
"""

from __future__ import annotations

from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Verb
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from solver_cases import verdict, warm_up

LAYERS = 6


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up(["joint", "search"])


def shared_scale(random: Random | None = None, layers: int = LAYERS, on_host: bool = False) -> Graph:
    """Every operation runs once, as in strangers' traces. random: odd sizes and times, some run again."""
    draft = Draft("shared scale")

    def draw(usual: int, *odd: int) -> int:
        return usual if random is None else random.choice((usual, *odd))

    def recomputed() -> bool:
        return random is not None and random.random() < 0.5

    x = [draft.tensor("x0", draw(10, 0), Kind.INPUT)]
    scale = draft.tensor("scale", draw(20, 0, 200), Kind.PARAMETER)
    weights = [draft.tensor(f"w{i}", draw(400, 0), Kind.PARAMETER) for i in range(layers)]
    modes = (Mode("host", 2.0, 0, (), on_host=True),) if on_host else ()
    for i in range(layers):
        x.append(draft.tensor(f"x{i + 1}", draw(100, 0)))
        reads, seconds = [x[i], weights[i], scale], draw(10, 0)
        draft.operation(f"F{i}", time=seconds, reads=reads, writes=[x[-1]], recompute=recomputed())
    gradient = draft.tensor("loss", draw(10, 0), Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[-1]], writes=[gradient], phase=Phase.LOSS, recompute=False)
    for i in reversed(range(layers)):
        below = draft.tensor(f"g{i}", draw(50, 0), Kind.GRADIENT)
        ds = draft.tensor(f"ds{i}", draw(20, 0), Kind.PARAMETER_GRADIENT)
        dw = draft.tensor(f"dw{i}", draw(400, 0), Kind.PARAMETER_GRADIENT)
        reads = [gradient, weights[i], scale, x[i]]
        draft.operation(f"B{i}", time=draw(20, 0), reads=reads, writes=[below, ds, dw], phase=Phase.BACKWARD)
        for name, read, changed in (("S", ds, scale), ("U", dw, weights[i])):
            draft.operation(
                f"{name}{i}",
                time=1,
                reads=[read],
                mutates=[changed],
                phase=Phase.UPDATE,
                recompute=False,
                modes=modes,
            )
        gradient = below
    return draft.graph([])


def test_only_the_last_update_of_each_may_move() -> None:
    graph = shared_scale()
    movable = {graph.operations.name[o] for o in Drops(graph).movable}
    assert movable == {"S0", *(f"U{i}" for i in range(LAYERS))}


def test_the_links_hide_what_they_can() -> None:
    """Half of the plain peak, links that could move all weights twice in a turn."""
    graph = shared_scale()
    budget = (minimum_memory(graph, Machine(links=Links(200.0, 200.0))) + baseline(graph).peak) // 2
    problem = Problem(graph, budget, Machine(links=Links(200.0, 200.0)))
    found = registry.solve("joint", problem, 2.0, bound_seconds=2.0)
    assert (found.schedule.verbs >= Verb.OFFLOAD).any()
    assert found.lower_bound is not None
    assert found.figures.time <= 1.05 * found.lower_bound


@pytest.mark.scripts
@pytest.mark.parametrize("first", range(0, 24, 12))
def test_random_ones_hold(first: int) -> None:
    faults: list[str] = []
    for seed in range(first, first + 12):
        random = Random(seed)
        graph = shared_scale(random, random.randint(1, 4), on_host=random.random() < 0.5)
        machine = Machine(links=Links(*random.choice(((1.0, 1.0), (200.0, 100.0)))))
        low, high = minimum_memory(graph, machine), baseline(graph).peak
        problem = Problem(graph, max(1, random.randint(low, high)), machine)
        solvers = ("joint", "search", "offmate", "rk-rotor") if seed % 6 else ("auto", "joint")
        for solver in solvers:
            one = verdict(solver, problem, 0.3, bound_seconds=0.0)
            faults += [f"seed {seed}: {solver}: {fault}" for fault in one.faults]
    assert not faults
