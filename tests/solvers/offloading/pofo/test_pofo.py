"""POFO: its program against enumeration, its schedules against Rotor's and against what links allow."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered
from memplan.graphs.machine import Link, Links, Machine
from memplan.graphs.structure.chain import chain_of
from memplan.graphs.transformations.updates import ADAMW, When, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.chains.costs import chain_costs
from memplan.solvers.chains.options import single_options
from memplan.solvers.chains.problem import chain_problem
from memplan.solvers.chains.runs import block_runs, save_all
from memplan.solvers.chains.table import ChainTable
from memplan.solvers.offloading.pofo import pofo
from memplan.solvers.offloading.pofo.segments import choice_residency
from memplan.solvers.offloading.pofo.table import PofoTable
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, Status
from memplan.solvers.registry.run import solve as solve_and_bound

solve = partial(solve_and_bound, bound_seconds=0.0)
FAST = Machine(links=Links(1e12, 1e12))


def table(blocks: int, seed: int, slots: int, rate: float) -> PofoTable:
    graph = chain(blocks, seed=seed, parameters=False)
    found = chain_of(graph)
    costs = chain_costs(graph, found, block_runs(graph, found))
    top = int((costs.backward_peak + np.cumsum(costs.saved_bytes)).max())
    rotor = ChainTable(single_options(costs), slots, -(-top // slots))
    filled = PofoTable(costs, rotor, rate)
    filled.fill()
    return filled


def enumerated(table: PofoTable, memory: int) -> float:
    """Every row of segments, every choice to keep or offload, every wait, one after the other."""
    rotor, costs, blocks = table.rotor, table.costs, len(table.costs)
    slot, wait = rotor.slot_bytes, 2 * table.slot_seconds

    def slots(size: int) -> int:
        return max(0, -(-int(size) // slot))

    def inner(first: int, last: int, m: int) -> float:
        return rotor.seconds(first, last)[m] if m >= 0 else inf

    def rest(i: int, where: str, kept: int, backlog: int) -> float:
        if kept + backlog > memory:
            return inf
        return min(wait * (backlog - q) + on(i, where, kept, q) for q in range(backlog + 1))

    def on(i: int, where: str, kept: int, backlog: int) -> float:
        extra = 0 if where == "kept" else rotor.input[i]
        left = memory - kept - backlog - extra
        best = inner(i, blocks - 1, left)
        own = rotor.input[i] if where == "free" else 0
        if i < blocks - 1 and left >= max(slots(costs.save_peak[i]), slots(costs.backward_peak[i])):
            after = max(0, backlog - int(table.served[i + 1] - table.served[i]))
            size = own + rotor.saved[i]
            best = min(best, rotor.costs.both[i] + rest(i + 1, "kept", kept + size, after))
            best = min(best, rotor.costs.both[i] + rest(i + 1, "sent", kept, after + size))
        for end in range(i + 1, blocks):
            peaks = [costs.advance_peak[i], *(costs.through_peak[k] for k in range(i + 1, end))]
            if left < max(map(slots, peaks)):
                continue
            recomputed = inner(i, end - 1, left) + sum(costs.advance_seconds[i:end])
            served = int(table.served[end] - table.served[i])
            best = min(best, recomputed + rest(end, "free", kept + own, max(0, backlog - served)))
            best = min(best, recomputed + rest(end, "free", kept, max(0, backlog + own - served)))
        return best

    return rest(0, "free", 0, 0)


@given(st.integers(2, 4), st.integers(0, 10**6), st.integers(4, 9), st.sampled_from([3e5, 2e6, 1e7, 1e9]))
@settings(max_examples=30, deadline=None)
def test_the_program_finds_what_enumeration_finds(blocks: int, seed: int, slots: int, rate: float):
    filled = table(blocks, seed, slots, rate)
    for memory in range(0, slots + 1, 2):
        assert filled.times()[memory] == pytest.approx(enumerated(filled, memory))


@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([3e5, 2e6, 1e7]))
@settings(max_examples=30, deadline=None)
def test_the_program_is_no_slower_than_rotor_and_never_slower_with_more(blocks: int, seed: int, rate: float):
    filled = table(blocks, seed, 30, rate)
    times = filled.times()
    assert (times <= filled.rotor.times() + 1e-9).all()
    assert all(more <= less + 1e-9 for less, more in pairwise(times))
    for slots in np.flatnonzero(np.isfinite(times)).tolist()[::7]:
        segments = filled.segments(slots)
        assert [s.first for s in segments] == [0, *(s.end for s in segments[:-1])]
        assert segments[-1].end == len(filled.costs)
        assert all(segment.memory >= 0 for segment in segments)


@given(st.integers(2, 7), st.integers(0, 10**6), st.integers(0, 4), st.sampled_from([5e5, 4e6, 1e8]))
@settings(max_examples=30, deadline=None)
def test_never_slower_than_rotor(blocks: int, seed: int, share: int, rate: float):
    graph = chain(blocks, seed=seed)
    budget = baseline(graph).peak * (share + 3) // 8
    problem = Problem(graph, budget, Machine(links=Links(rate, rate)))
    try:
        found = solve("pofo", problem, settings={"tries": "4"}).figures
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve("rotor", problem)
        return
    assert found.peak <= budget
    try:
        rotor = solve("rotor", problem).figures.time
    except InfeasibleError:
        return
    assert found.time <= rotor * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_fast_link_makes_recomputation_needless(seed: int):
    graph = chain(6, seed=seed, parameters=False)
    plain = baseline(graph)
    solution = solve("pofo", Problem(graph, plain.peak * 6 // 10, FAST))
    assert solution.figures.time == pytest.approx(plain.time, rel=1e-3)
    assert solution.figures.host_peak > 0


def test_a_slow_link_is_left_alone():
    graph = chain(6, seed=1, parameters=False)
    slow = Machine(links=Links(1.0, 1.0))
    problem = Problem(graph, baseline(graph).peak * 6 // 10, slow)
    solution = solve("pofo", problem)
    assert not any(verb in (Verb.OFFLOAD, Verb.PREFETCH) for verb in solution.schedule.verbs.tolist())
    assert solution.figures.time == solve("rotor", problem).figures.time


def test_what_fits_stays():
    graph = chain(5, seed=3)
    solution = solve("pofo", Problem(graph, baseline(graph).peak, FAST))
    assert solution.figures == baseline(graph)
    assert solution.status == Status.OPTIMAL


@pytest.mark.parametrize("seed", range(3))
def test_the_least_budget_that_a_refusal_names_is_reached(seed: int):
    graph = chain(6, seed=seed)
    problem = Problem(graph, 1, Machine(links=Links(4e6, 4e6)))
    with pytest.raises(InfeasibleError) as refused:
        solve("pofo", problem)
    least = refused.value.least
    assert least is not None
    assert solve("pofo", replace(problem, budget=least)).figures.peak <= least
    with pytest.raises(InfeasibleError):
        solve("pofo", replace(problem, budget=least - 1))


@pytest.mark.parametrize("when", ["in-backward", "after"])
def test_updates_stay_on_the_device(when: When):
    graph = with_updates(chain(5, seed=2), optimizer=ADAMW, when=when, device_rate=1e9, host_rate=1e8)
    problem = Problem(graph, baseline(graph).peak * 8 // 10, Machine(links=Links(1e7, 1e7)))
    solution = solve("pofo", problem)
    assert solution.figures.time < solve("rotor", problem).figures.time


def test_what_is_no_chain_is_refused():
    with pytest.raises(NotAcceptedError, match="pofo takes"):
        solve("pofo", Problem(layered(9), 10**9, FAST))


def test_no_links_and_a_host_too_small():
    graph = chain(4, seed=1)
    with pytest.raises(NotAcceptedError, match="needs a machine with links d2h and h2d"):
        solve("pofo", Problem(graph, 10**9))
    small = replace(FAST, host_capacity=1000)
    problem = Problem(graph, baseline(graph).peak * 7 // 10, small)
    solution = solve("pofo", problem)
    assert solution.figures.host_peak <= 1000
    with pytest.raises(InputError, match="slots must be 1 or more"):
        solve("pofo", problem, settings={"slots": "0"})


def test_a_time_limit_gives_the_best_so_far():
    graph = chain(6, seed=1, parameters=False)
    problem = Problem(graph, baseline(graph).peak * 7 // 10, Machine(links=Links(1e6, 1e6)))
    limited = pofo.solve(problem, Options(time_limit=0.0))
    assert limited.status == Status.FEASIBLE
    simulate(graph, limited.schedule, budget=problem.budget, machine=problem.machine)


def test_what_would_still_be_under_way_when_backward_begins_stays():
    """The copies out that end in forward, in the order in which they begin; with a link without end, all."""
    graph = chain(6, seed=3, parameters=False)
    chained = chain_problem("pofo", Problem(graph, 10**9), 60)
    saved = set().union(*(run.saved for run in chained.runs[:-1]))
    whole = choice_residency(chained, save_all(chained.blocks), saved)
    assert len(whole.offloaded) == len(saved)
    before: set[int] = set()
    for rate in (1.0, 1e5, 1e6, 1e7, 1e9, inf):
        some = choice_residency(chained, save_all(chained.blocks), saved, None if rate == inf else Link(rate))
        leaving = [position for _x, position in some.offloaded]
        assert leaving == sorted(leaving)
        assert len(some.offloaded) >= len(before)
        if some.offloaded and rate < inf:
            starts = np.cumsum([0.0, *(graph.operations.time[o] for o, _mode in some.runs)])
            sent = sum(int(graph.tensors.bytes[x]) for x, _position in some.offloaded) / rate
            assert sent <= starts[next(p for p, (o, _m) in enumerate(some.runs) if o == 7)] + 1e-9
        before = {x for x, _position in some.offloaded}
    assert before == saved


@pytest.mark.filterwarnings("error")
def test_a_link_may_serve_more_than_any_memory():
    """2^62 bytes a second for hours: as fast as the plain schedule, and no number overflows."""
    graph = chain(6, parameters=False)
    budget = baseline(graph).peak * 9 // 10
    problem = Problem(graph, budget, Machine(links=Links(d2h=2**62, h2d=2**62)))
    answer = pofo.solve(problem, Options(settings=pofo.Settings(slots=500)))
    figures = simulate(graph, answer.schedule, budget=budget, machine=problem.machine).figures
    assert figures.time == pytest.approx(baseline(graph).time, rel=1e-6)
