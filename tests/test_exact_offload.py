"""The exhaustive search over offloading schedules (exact_offload.py), held against other searches."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from exact_offload import optimum
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.residency.prefetch_placement import place_prefetches
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from small_offload import direct_case, small_case

STATES = 6_000


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(60))
def test_the_estimate_of_time_leaves_no_better_schedule_out(seed: int) -> None:
    case = small_case(seed)
    fast = optimum(case.graph, case.machine, case.budget, states=STATES)
    all_of_them = optimum(case.graph, case.machine, case.budget, prune=False, states=STATES)
    if fast.proven and all_of_them.proven:
        assert fast.period == pytest.approx(all_of_them.period, rel=1e-9)
        assert fast.judged <= all_of_them.judged


@pytest.mark.sampled(17)
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_random_choice_of_intervals_is_faster(seed: int) -> None:
    case, random = small_case(seed), Random(seed)
    best = optimum(case.graph, case.machine, case.budget, states=STATES)
    if not best.proven:
        pytest.skip("given up")
    runs = in_default_mode(range(len(case.graph.operations)))
    uses = [
        (x, position)
        for position in range(len(runs))
        for x in {*case.graph.read_lists[position], *case.graph.operation(position).writes}
        if not case.graph.resident[x] or case.graph.persistent[x]
    ]
    for _ in range(10):
        offloaded = {use: Memory.HOST for use in uses if random.random() < 0.3}
        found = place_prefetches(case.graph, case.machine, case.budget, Residency(runs, offloaded))
        if found is not None:
            assert found[1].time >= best.period * (1 - 1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_no_random_choice_of_what_is_made_on_the_host_is_faster(seed: int) -> None:
    case, random = direct_case(seed), Random(seed)
    graph = case.graph
    best = optimum(graph, case.machine, case.budget, states=STATES)
    if not best.proven:
        pytest.skip("given up")
    modes = [len(graph.operation(o).modes) for o in range(len(graph.operations))]
    gradients = [x for x in range(len(graph.tensors)) if graph.tensor(x).kind >= Kind.GRADIENT]
    for _ in range(10):
        runs = [(o, random.randint(0, count)) for o, count in enumerate(modes)]
        uses = [(x, p) for p, (o, _m) in enumerate(runs) for x in graph.operation(o).writes if x in gradients]
        offloaded = {use: Memory.HOST for use in uses if random.random() < 0.3}
        found = place_prefetches(graph, case.machine, case.budget, Residency(runs, offloaded))
        if found is not None:
            assert found[1].time >= best.period * (1 - 1e-9)


def test_a_gradient_that_finds_no_room_on_the_device() -> None:
    """B makes g, 4 B, in 3 s on the device, in 5 s on the host. It reads w, 4 B, and x, 3 B, so with 7 B the
    host is the only place for g; U, 1 s, takes it there, and w comes back, 1 s."""
    draft = Draft("room")
    w, x, g = (
        draft.tensor("w", 4, Kind.PARAMETER),
        draft.tensor("x", 3),
        draft.tensor("g", 4, Kind.PARAMETER_GRADIENT),
    )
    draft.operation("F", time=1, reads=[w], writes=[x], recompute=False)
    draft.operation(
        "B",
        time=3,
        reads=[w, x],
        writes=[g],
        phase=Phase.BACKWARD,
        modes=[Mode("go", 5, 0, (g,), writes_host=(g,))],
    )
    host = Mode("host", 1, 0, (), on_host=True)
    draft.operation("U", time=1, reads=[g], mutates=[w], phase=Phase.UPDATE, recompute=False, modes=[host])
    graph, machine = draft.graph(), Machine(links=Links(d2h=4, h2d=4))
    assert minimum_memory(graph, machine) == 7
    assert optimum(graph, machine, 11).period == 1 + 3 + 1
    best = optimum(graph, machine, 7)
    assert best.period == 1 + 5 + 1 + 1
    assert best.schedule is not None
    assert [step for step in best.schedule if step.verb == Verb.OFFLOAD] == []
    assert offload_bound(graph, machine, 7).seconds <= best.period


def test_a_tensor_that_is_away_while_the_peak_passes() -> None:
    """x 4 B stays for `last`, room for it only without `large`: down 4 s and up 2 s beside `wait` 3 s.

    F1 ─x─▶ last        compute  F1 │ … large … │ last
    large, wait         d2h         └ x ┘            large waits for the end of the copy at t = 1 + 4
    """
    draft = Draft("peak")
    x = draft.tensor("x", 4)
    big = draft.tensor("big", 6)
    end = draft.tensor("end", 0)
    draft.operation("F1", time=1, writes=[x])
    draft.operation("large", time=1, writes=[big])
    draft.operation("wait", time=3, reads=[big], writes=[end], recompute=False)
    draft.operation("last", time=1, reads=[x, end], phase=Phase.BACKWARD)
    graph, machine = draft.graph(), Machine(links=Links(d2h=1, h2d=2))
    assert optimum(graph, machine, 10).period == baseline(graph).time == 6
    assert optimum(graph, machine, 9).period == 1 + 4 + 1 + 3 + 2 + 1
    assert optimum(graph, machine, 5).period == inf
    recomputed = optimum(graph, machine, 9, recompute=True)
    assert recomputed.period == 7
    assert recomputed.schedule is not None
    assert simulate(graph, recomputed.schedule, budget=9, machine=machine).figures.time == 7


def test_a_discounted_communication() -> None:
    """A weight of 2 B that leaves after its update: one copy down serves both intervals: 2 s down, 4 s up."""
    draft = Draft("discount")
    w = draft.tensor("w", 2, Kind.PARAMETER)
    large = [draft.tensor(f"large{k}", 3) for k in range(2)]
    mark = draft.tensor("mark", 0)
    draft.operation("before", time=9, writes=[large[0]])
    draft.operation("F", time=1, reads=[w], writes=[mark])
    draft.operation("between", time=9, reads=[mark], writes=[large[1]])
    draft.operation("U", time=1, reads=[mark], mutates=[w], phase=Phase.UPDATE, recompute=False)
    graph, machine = draft.graph(), Machine(links=Links(d2h=1, h2d=1))
    best = optimum(graph, machine, 3)
    assert best.period == 9 + 2 + 1 + 9 + 2 + 1 + 2
    assert best.schedule is not None
    copies = [step for step in best.schedule if step.verb == 2]
    assert len(copies) == 1
