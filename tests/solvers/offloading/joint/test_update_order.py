"""Updates on the CPU take place in backward's order or at the end: any choice keeps the rules, and a late one
keeps the CPU busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations
from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.residency.from_schedule import recover_residency
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint.alternatives import with_alternatives
from memplan.solvers.offloading.joint.anneal import Anneal
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.slots import Slots
from memplan.solvers.offloading.joint.start import host_modes, other_modes
from memplan.solvers.offloading.joint.state import State
from memplan.solvers.offloading.joint.timeline import ABSENT
from memplan.solvers.offloading.joint.update_order import late_order, late_updates
from small_offload import small_training

MACHINE = Machine(links=Links(4.0, 4.0))
PLENTY = 2**40


def orders(seed: int) -> Iterator[list[int]]:
    """Yield the orders of updates after some moves, which keep the rules; then of moves that begin where
    updates are late."""
    random = Random(seed)
    graph = small_training(random, random.randint(3, 6), states=seed % 2 == 0, host=True, tied=seed % 3 == 0)
    drops = Drops(graph)
    runs, moves = Slots(drops, drops.runs).runs, 12 if other_modes(graph) else 0
    for _ in range(2):
        state = State(graph, MACHINE, PLENTY, with_alternatives(drops, runs).runs)
        anneal = Anneal(state, state.evaluate(1.0), other_modes(graph), seed)
        for _ in range(moves):
            assert anneal._switch()
            updates = [run[0] for run in state.runs if run[1] != ABSENT and run[0] in drops.movable]
            assert sorted(updates) == sorted(drops.movable)
            yield updates
            outcome = state.evaluate(1.0)
            schedule = state.schedule(outcome)
            assert simulate(graph, schedule, machine=MACHINE).figures.time == pytest.approx(outcome.seconds)
            runs = Slots(drops, recover_residency(graph, schedule).runs).runs


def test_any_order_keeps_the_rules() -> None:
    """The simulator accepts it, and finds the time that the search counts with."""
    found = [order != sorted(order) for seed in range(40) for order in orders(seed)]
    assert sum(found) > 50


def layers(times: Iterable[tuple[int, int]]) -> Graph:
    """Layers of which forward takes the first time and the update on the CPU the second; on the device it
    takes long."""
    draft, listed = Draft("layers"), list(times)
    x = [draft.tensor("x0", 0, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", 1, Kind.PARAMETER) for i in range(len(listed))]
    for i, (forward, _update) in enumerate(listed):
        x.append(draft.tensor(f"x{i + 1}", 0))
        draft.operation(f"F{i + 1}", time=forward, reads=[x[i], weights[i]], writes=[x[i + 1]])
    loss, g = draft.tensor("loss", 0), draft.tensor("g", 0, Kind.GRADIENT)
    draft.operation("loss", time=0, reads=[x[-1]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    for i, (forward, update) in reversed([*enumerate(listed)]):
        below = draft.tensor(f"g{i}", 0, Kind.GRADIENT)
        d = draft.tensor(f"d{i}", 1, Kind.PARAMETER_GRADIENT)
        reads = [g, x[i], weights[i]]
        draft.operation(f"B{i + 1}", time=2 * forward, reads=reads, writes=[below, d], phase=Phase.BACKWARD)
        host = (Mode("host", float(update), 0, (), on_host=True),)
        draft.operation(
            f"U{i + 1}", time=100, reads=[d], mutates=[weights[i]], phase=Phase.UPDATE, modes=host
        )
        g = below
    return draft.graph([loss])


def test_what_is_late_can_be_early() -> None:
    """Each update has two positions, in whichever it takes place; but that of the first layer, which ends
    backward, has one."""
    graph = layers([(1, 1)] * 4)
    drops = Drops(graph)
    early = [operation for operation, _mode in drops.runs]
    late = [o for o in early if o not in drops.movable] + late_order(graph, drops.runs, drops.movable)
    assert late != early
    for order in early, late:
        runs = with_alternatives(drops, [(operation, 0) for operation in order]).runs
        found = [o for o, _mode in runs if o in drops.movable]
        updates = sorted(drops.movable)
        assert found == [*updates, *updates[-2::-1]]


@pytest.mark.parametrize("seed", range(12))
def test_late_updates_are_about_as_fast_as_the_best_choice(seed: int) -> None:
    """Of all choices, by enumeration; with links that take no time to speak of."""
    random = Random(seed)
    graph = layers([(random.randint(1, 3), random.randint(1, 8)) for _ in range(6)])
    drops = Drops(graph)
    runs, modes = with_alternatives(drops, drops.runs).runs, host_modes(graph)
    state = State(graph, Machine(links=Links(1e6, 1e6)), PLENTY, runs)
    positions = {o: [p for p, run in enumerate(runs) if run[0] == o] for o in modes}
    first = {places[0]: (o, places[-1]) for o, places in positions.items()}
    state.switch({place: modes[o] for place, (o, _late) in first.items()})

    def seconds(late: Iterable[int]) -> float:
        mark = state.mark()
        for place in late:
            o, last = first[place]
            state.switch({place: ABSENT, last: modes[o]})
        found = state.evaluate(1.0).seconds
        state.rollback(mark)
        return found

    both = [place for place, (_o, last) in first.items() if last != place]
    choices = chain.from_iterable(combinations(both, n) for n in range(len(both) + 1))
    best = min(map(seconds, choices))
    chosen = seconds(p for p in late_updates(state, [[p] for p in sorted(first)]) if p in both)
    assert chosen <= 1.1 * best
    assert chosen <= seconds(())


def test_the_order_is_found_where_the_device_takes_no_time() -> None:
    """As in a graph all of whose operations are on the queue between ranks, or have no time yet."""
    graph = small_training(Random(1), 4, states=True, host=True)
    graph = replace(graph, operations=replace(graph.operations, time=0.0 * graph.operations.time))
    drops, modes = Drops(graph), host_modes(graph)
    state = State(graph, MACHINE, PLENTY, drops.runs)
    groups = [[place] for place, (operation, _mode) in enumerate(drops.runs) if operation in modes]
    state.switch({place: modes[drops.runs[place][0]] for (place,) in groups})
    assert groups
    assert {place for (place,) in groups} >= {*late_updates(state, groups)}
