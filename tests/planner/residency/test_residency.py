"""Decisions become schedules: whatever is away, on the host or the disk, and wherever it moves, the simulator
accepts what planner/residency makes of it, with as many transfers as the versions of the tensors
need."""

from __future__ import annotations

from random import Random

import pytest
from layered_training import HOST_MODE, LINKED, random_runs, training
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Memory
from memplan.planner.baseline import baseline
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.residency.lifetimes import find_lifetimes
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.schedule import Initial, Verb, compute, delete, offload, prefetch
from memplan.planner.schedule.sequence import Run, in_default_mode
from memplan.planner.simulator.simulate import simulate

HOST, DISK = Memory.HOST, Memory.DISK


def named(graph: Graph, runs: list[Run], offloaded: dict[tuple[str, str], Memory]) -> dict[TensorUse, Memory]:
    """Offload intervals by the names of the tensor and of the operation after whose (last) run it leaves."""
    last = {operation: position for position, (operation, _mode) in enumerate(runs)}
    return {
        (graph.tensor_index[x], last[graph.operation_index[o]]): memory
        for (x, o), memory in offloaded.items()
    }


def test_nothing_away_is_the_plain_schedule() -> None:
    graph = training(3)
    runs = in_default_mode(range(len(graph.operations)))
    figures = simulate(graph, build_schedule(graph, Residency(runs))).figures
    assert figures == baseline(graph)


def test_one_offload_serves_two_intervals() -> None:
    """w1 leaves after its update and again after F1: one copy out, two in; it starts on the host."""
    graph = training(2)
    runs = in_default_mode(range(len(graph.operations)))
    w1, offloaded = graph.tensor_index["w1"], {("w1", "U1"): HOST, ("w1", "F1"): HOST}
    schedule = build_schedule(graph, Residency(runs, named(graph, runs, offloaded)))
    simulate(graph, schedule, machine=LINKED)
    of_w1 = [step for step in schedule if step.verb and step.target == w1]
    assert of_w1 == [
        prefetch(w1),
        delete(w1),
        prefetch(w1),
        delete(w1, HOST),
        offload(w1),
        delete(w1),
    ]
    assert schedule.initial == Initial(host=frozenset({w1}))


def test_an_update_on_the_host_brings_the_gradient_down_and_the_weight_up() -> None:
    graph = training(1)
    runs: list[Run] = [(0, 0), (1, 0), (2, HOST_MODE)]
    w, d, s = (graph.tensor_index[name] for name in ("w1", "d1", "s1"))
    schedule = build_schedule(graph, Residency(runs))
    simulate(graph, schedule, machine=LINKED)
    assert [
        step for step in schedule if step == compute(2, 1) or (step.verb and step.target in (w, d, s))
    ] == [
        prefetch(w),
        offload(d),
        delete(w),
        delete(d),
        compute(2, HOST_MODE),
        delete(d, HOST),
    ]
    assert schedule.initial == Initial(host=frozenset({w, s}))


def test_a_frozen_weight_is_never_copied_out() -> None:
    graph = training(2, frozen=2)
    runs = in_default_mode(range(len(graph.operations)))
    offloaded = {("w2", "F2"): HOST, ("w2", "B2"): HOST}
    schedule = build_schedule(graph, Residency(runs, named(graph, runs, offloaded)))
    simulate(graph, schedule, machine=LINKED)
    w2 = graph.tensor_index["w2"]
    assert offload(w2) not in list(schedule)
    assert schedule.initial.host == {w2}


def test_after_its_update_on_the_host_a_weight_is_where_that_use_says() -> None:
    """Not where the use on the device before says: w1 is on the host from B1 on, on the disk from U1 on."""
    graph = training(1)
    runs: list[Run] = [(0, 0), (1, 0), (2, HOST_MODE)]
    w1 = graph.tensor_index["w1"]
    offloaded = named(graph, runs, {("w1", "B1"): HOST, ("w1", "U1"): DISK})
    schedule = build_schedule(graph, Residency(runs, offloaded))
    simulate(graph, schedule, machine=LINKED)
    assert [step for step in schedule if step.verb and step.target == w1] == [
        prefetch(w1, HOST),
        delete(w1, DISK),
        prefetch(w1),
        delete(w1),
        offload(w1, DISK),
        delete(w1, HOST),
    ]


def test_a_result_may_end_on_the_host() -> None:
    graph = training(1, result=True)
    runs = in_default_mode(range(len(graph.operations)))
    schedule = build_schedule(graph, Residency(runs, named(graph, runs, {("d1", "B1"): HOST})))
    d1 = graph.tensor_index["d1"]
    assert [step for step in schedule if step.verb and step.target == d1] == [offload(d1), delete(d1)]
    simulate(graph, schedule, machine=LINKED)


@pytest.mark.sampled(194)
@pytest.mark.parametrize("seed", range(400))
def test_any_decision_makes_a_valid_schedule(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(1, 4), frozen=random.randint(0, 3), result=random.random() < 0.3)
    runs = random_runs(graph, random)
    offloaded: dict[TensorUse, Memory] = {}
    leave: dict[TensorUse, int] = {}
    back: dict[TensorUse, int] = {}
    for lifetime in find_lifetimes(graph, runs):
        x = lifetime.tensor
        if graph.tensors.kind[x] == Kind.INPUT:
            continue
        for use, after in zip(lifetime.uses, [*lifetime.uses[1:], None], strict=True):
            position = use.moment // 2
            if use.memory == HOST and lifetime.persistent and random.random() < 0.2:
                offloaded[x, position] = DISK
            if use.memory == HOST or random.random() < 0.4:
                continue
            offloaded[x, position] = random.choice([HOST, HOST, DISK])
            if after is not None and after.memory == Memory.DEVICE:
                leave[x, position] = random.randint(position + 1, after.moment // 2)
                back[x, after.moment // 2] = random.randint(leave[x, position], after.moment // 2)
    try:
        schedule = build_schedule(graph, Residency(runs, offloaded, leave, back))
    except InvalidScheduleError as refusal:
        if refusal.rule != "initial":
            raise
        return
    simulate(graph, schedule, machine=LINKED)


@pytest.mark.parametrize(
    ("tensor", "after", "slots"),
    [
        ("x1", "F2", {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2}),  # from F1 to B2
        ("w1", "U1", {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 6}),  # from U1 to F1 of the next iteration
    ],
)
def test_a_copy_down_is_between_the_change_and_the_next_use(
    tensor: str, after: str, slots: dict[int, int]
) -> None:
    """A slot outside of that counts as the nearest one inside; slots: the requested ones, and those taken."""
    graph = training(2)
    runs = in_default_mode(range(len(graph.operations)))
    x, use = graph.tensor_index[tensor], graph.operation_index[after]
    for requested, taken in slots.items():
        schedule = build_schedule(graph, Residency(runs, {(x, use): HOST}, {(x, use): requested}))
        simulate(graph, schedule, machine=LINKED)
        steps = list(schedule)
        assert sum(step.verb == Verb.COMPUTE for step in steps[: steps.index(offload(x))]) == taken
