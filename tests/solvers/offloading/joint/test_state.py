"""A state of the joint search is what the simulator says of it, whatever has been changed in it."""

from __future__ import annotations

from random import Random

import pytest
from direct_access import with_direct_gradients
from layered_training import HOST_MODE, LINKED, random_runs, training
from memplan.graphs.machine import Machine, Memory
from memplan.planner.residency.prefetch_placement import ResidencyTransfers
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint.anneal import Anneal
from memplan.solvers.offloading.joint.parts import IntervalParts
from memplan.solvers.offloading.joint.state import State


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(150))
def test_any_changes(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(2, 5), frozen=random.randint(0, 3), result=random.random() < 0.3)
    if seed % 2:
        graph = with_direct_gradients(graph, 2.0)
    state = State(graph, LINKED, 2**40, random_runs(graph, random))
    for _ in range(12):
        options = state.intervals
        chosen = [interval.place for interval in random.sample(options, min(3, len(options)))]
        switchable = [p for p, (o, _m) in enumerate(state.runs) if o in graph.operations.modes]
        match random.randrange(5):
            case 0:
                state.send(chosen)
            case 1:
                state.keep(chosen)
            case 2 if random.random() < 0.5:
                deeper = [where for where in chosen if not state.cyclic[where[0]]]
                state.send(deeper, Memory.DISK)
            case 2:
                for where in chosen:
                    state.delay(where, random.choice([None, random.randint(0, len(state.runs))]))
            case 3:
                for where in chosen:
                    move = random.choice([state.move, state.read_at])
                    move(where, random.choice([None, random.randint(-5, 5) or None]))
            case _:
                positions = random.sample(switchable, min(1, len(switchable)))
                state.switch(dict.fromkeys(positions, random.choice([0, HOST_MODE])))
        residency = Residency(state.runs, state.offloaded, state.decided.leave)
        demand = ResidencyTransfers(graph, LINKED.hierarchy, residency)
        assert state.demand == demand.device_peak
        budget = random.choice([2**40, demand.device_peak, demand.device_peak + random.randint(0, 30)])
        state.instance.limits[Memory.DEVICE] = budget
        outcome = state.evaluate(random.choice([0.0, 1.0, 1.5, 1e9]), random.choice([0, 5]))
        assert outcome.excess == 0
        schedule = state.schedule(outcome)
        figures = simulate(graph, schedule, budget=budget, machine=LINKED).figures
        assert figures.time == pytest.approx(outcome.seconds, rel=1e-6)


def test_the_plain_runs_take_the_plain_time() -> None:
    graph = training(3)
    state = State(graph, Machine(links=LINKED.links), 2**40, in_default_mode(range(len(graph.operations))))
    assert state.evaluate(1.0).seconds == pytest.approx(float(graph.operations.time.sum()))


def test_an_interruption_half_way_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between what a change writes down and the rows that follow from it."""
    graph = training(5)
    state = State(graph, LINKED, 2**40, in_default_mode(range(len(graph.operations))))
    anneal = Anneal(state, state.evaluate(1.0), {}, seed=0)
    steps = state.steps(1.0, 0.0)[0].tolist()

    def interrupted(_parts: object, _tensor: object, _decided: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IntervalParts, "of", interrupted)
        state.send([interval.place for interval in state.intervals])
        with pytest.raises(KeyboardInterrupt):
            state.evaluate(1.0)
    anneal.restore(anneal.best)
    assert not state.offloaded
    assert state.steps(1.0, 0.0)[0].tolist() == steps
    simulate(graph, state.schedule(anneal.now), machine=LINKED)
