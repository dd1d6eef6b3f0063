"""Deletes for a given sequence of operations: pointwise least memory, and no useless runs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.schedule.schedule import Verb, compute, delete
from memplan.planner.schedule.sequence import Run, in_default_mode, prune, schedule_of
from memplan.planner.simulator.simulate import simulate


def with_repeats(graph: Graph, seed: int) -> list[Run]:
    """The file's order with earlier operations run again here and there, their lost inputs too."""
    random = Random(seed)
    runs: list[int] = []
    for operation in range(len(graph.operations)):
        runs.append(operation)
        if random.random() < 0.3:
            recomputed = random.randrange(operation + 1)
            if graph.operations.recompute[recomputed]:
                runs.append(recomputed)
    return in_default_mode(runs)


def least_curve(graph: Graph, runs: list[Run]) -> list[int]:
    """Bytes while each run goes on, from the definition: a tensor must be there at a moment if a later
    run reads it (or it is a result) and no run in between makes it. Single producers only."""
    reads = [set(graph.operations.reads[operation].tolist()) for operation, _mode in runs]
    writes = [set(graph.operations.writes[operation].tolist()) for operation, _mode in runs]

    def needed_after(tensor: int, position: int) -> bool:
        for later in range(position + 1, len(runs)):
            if tensor in reads[later]:
                return True
            if tensor in writes[later]:
                return False
        return tensor in graph.results

    curve: list[int] = []
    for position, (operation, _mode) in enumerate(runs):
        total = int(graph.operations.workspace[operation])
        for tensor in range(len(graph.tensors)):
            there = graph.resident[tensor] or tensor in reads[position]
            through = tensor not in writes[position] and needed_after(tensor, position)
            if there or through or tensor in writes[position]:
                total += int(graph.tensors.bytes[tensor])
        curve.append(total)
    return curve


SMALL = [chain(5, seed=3), layered(25, seed=1), layered(25, seed=2, width=4), unet(1)]


@given(st.sampled_from([0, 1, 2]), st.integers(0, 10**6))
def test_the_curve_is_the_least_there_is(which: int, seed: int) -> None:
    graph = SMALL[which]
    runs = prune(graph, with_repeats(graph, seed))
    schedule = schedule_of(graph, runs)
    curve = simulate(graph, schedule).device_curve.tolist()
    while_running = [
        size for size, verb in zip(curve, schedule.verbs.tolist(), strict=True) if verb == Verb.COMPUTE
    ]
    assert while_running == least_curve(graph, runs)


@given(st.sampled_from([0, 1, 2, 3]), st.integers(0, 10**6))
def test_pruned_runs_are_valid_and_pruned_once(which: int, seed: int) -> None:
    graph = SMALL[which]
    runs = with_repeats(graph, seed)
    pruned = prune(graph, runs)
    assert prune(graph, pruned) == pruned
    time = sum(float(graph.operations.time[operation]) for operation, _mode in pruned)
    assert simulate(graph, schedule_of(graph, runs)).figures.time == pytest.approx(time)


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.name)
def test_a_useless_repeat_is_dropped(graph: Graph) -> None:
    order = in_default_mode(range(len(graph.operations)))
    assert prune(graph, [*order, (0, 0)]) == order


def test_several_outputs_and_contributions() -> None:
    """n0 makes p and q; n1 and n2 contribute to s; n3 reads q and s. n0 runs again for q alone.

    n0 ─ p ─ n1 ┐
      └─ q ─ n2 ┴ s ─ n3 (q)
    """
    draft = Draft("contributions")
    p, q, s, end = (draft.tensor(name, 10**k) for k, name in enumerate("pqse"))
    draft.operation("n0", time=1, writes=[p, q])
    draft.operation("n1", time=1, reads=[p], writes=[s])
    draft.operation("n2", time=1, reads=[q], writes=[s])
    draft.operation("n3", time=1, reads=[s, q], writes=[end])
    graph = draft.graph([end])
    steps = list(schedule_of(graph, in_default_mode([0, 1, 2, 0, 3])))
    assert steps == [
        compute(0),
        compute(1),
        delete(p),
        compute(2),
        delete(q),
        compute(0),
        delete(p),
        compute(3),
        delete(s),
        delete(q),
    ]
    assert simulate(graph, schedule_of(graph, in_default_mode([0, 1, 2, 0, 3]))).figures.peak == 1110
