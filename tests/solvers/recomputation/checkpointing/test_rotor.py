"""Rotor against brute force over all persistent sequences, its table against the recursion as printed, and
what rounding may and may not do."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest
from attempts import assert_honest, attempt
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Machine
from memplan.graphs.structure.chain import chain_of
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.chains.costs import ChainCosts, chain_costs
from memplan.solvers.chains.least import LeastMemory
from memplan.solvers.chains.options import single_options, without_options
from memplan.solvers.chains.problem import chain_problem
from memplan.solvers.chains.table import ChainTable
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem, Status, ValidatedSolution
from memplan.solvers.registry import run as registry
from persistent import pareto
from random_chains import random_costs
from training_graphs import training


def rotor(graph: Graph, budget: int, **choices: int) -> ValidatedSolution:
    texts = {key: str(value) for key, value in choices.items()}
    return registry.solve("rotor", Problem(graph, budget), settings=texts, bound_seconds=0)


@pytest.mark.sampled(19)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_no_persistent_sequence_is_faster(blocks: int, seed: int) -> None:
    """At every budget at which the best changes, and right below it: some 1,500 pairs of chain and budget."""
    graph = chain(blocks, seed=seed, parameters=seed % 2 == 0, fast_forward=seed % 3 > 0)
    front = pareto(graph, blocks)
    for (peak, time), (next_peak, _time) in pairwise([*front, (front[-1][0] * 2, 0.0)]):
        for budget in (peak, next_peak - 1):
            found = rotor(graph, budget, slots=5000)
            assert found.figures.time == pytest.approx(time, rel=1e-12)
            assert found.status == Status.OPTIMAL
    with pytest.raises(InfeasibleError) as refusal:
        rotor(graph, front[0][0] - 1)
    assert refusal.value.least == front[0][0]


def by_recursion(costs: ChainCosts, memory: int) -> dict[tuple[int, int, int], float]:
    """C(s, t, m) word for word, in bytes, one number at a time."""
    blocks = len(costs)

    @cache
    def c(s: int, t: int, m: int) -> float:
        if m < 0:
            return inf
        gradient = costs.gradient_bytes[t]
        forward = costs.turn_peak[s] if s == t else costs.save_peak[s]
        m_all = max(gradient + forward, costs.backward_peak[s])
        if s == t:
            return costs.turn_seconds[s] + costs.backward_seconds[s] if m >= m_all else inf
        m_none = gradient + max([costs.advance_peak[s], *(costs.through_peak[j] for j in range(s + 1, t))])
        best = inf
        if m >= m_none:
            for split in range(s + 1, t + 1):
                advance = costs.advance_seconds[s:split].sum()
                parts = c(split, t, m - costs.input_bytes[split]) + c(s, split - 1, m)
                best = min(best, advance + parts)
        if m >= m_all:
            rest = c(s + 1, t, m - costs.saved_bytes[s])
            best = min(best, costs.save_seconds[s] + rest + costs.backward_seconds[s])
        return best

    return {(s, t, m): c(s, t, m) for s in range(blocks) for t in range(s, blocks) for m in range(memory + 1)}


def entry(table: ChainTable, s: int, t: int, m: int) -> float:
    return float(table.left[s, t, m] - (table.before[t + 1] - table.before[s]))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("seed", range(60))
def test_the_table_is_the_recursion(seed: int) -> None:
    random = Random(seed)
    costs = random_costs(random.randint(1, 7), random)
    table = ChainTable(single_options(costs), 60, 1)
    for (s, t, m), time in by_recursion(costs, 60).items():
        assert entry(table, s, t, m) == pytest.approx(time, rel=1e-12), (s, t, m)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 8))
def test_rounding_brackets_the_exact_table(seed: int, slot_bytes: int, spare: int) -> None:
    """Whatever the slots: rounded up is never faster, rounded down never slower than exact."""
    random = Random(seed)
    costs = random_costs(random.randint(1, 7), random)
    slots, spare = 60 // slot_bytes, min(spare, slot_bytes - 1)
    exact = ChainTable(single_options(costs), 70, 1).times()
    up = ChainTable(single_options(costs), slots, slot_bytes, spare).times()
    down = ChainTable(single_options(costs), slots, slot_bytes, spare, optimistic=True).times()
    for m in range(slots + 1):
        precise = exact[m * slot_bytes + spare]
        assert down[m] <= precise + 1e-9
        assert precise <= up[m] + 1e-9


@given(st.integers(0, 10**6))
def test_the_least_memory_is_where_the_table_starts(seed: int) -> None:
    random = Random(seed)
    costs = random_costs(random.randint(1, 7), random)
    assert LeastMemory(single_options(costs)).bytes == int(
        np.flatnonzero(np.isfinite(ChainTable(single_options(costs), 120, 1).times()))[0]
    )


@pytest.mark.scripts
@given(st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_costs_never_promise_less_than_the_replayed_peak(blocks: int, seed: int, parameters: bool) -> None:
    """Without rounding, a sequence found for m bytes peaks at no more; the replayed time is the table's."""
    graph = chain(blocks, seed=seed, parameters=parameters)
    chained = chain_problem("rotor", Problem(graph, baseline(graph).peak), 200)
    costs = chain_costs(graph, chained.chain, chained.runs)
    unit = 2**17
    slots = (baseline(graph).peak - costs.resident_bytes) // unit + 1
    table = ChainTable(single_options(costs), slots, unit, 4)
    times = table.times()
    for m in np.flatnonzero(np.isfinite(times))[::7].tolist():
        candidate = chained.candidate(without_options(table.moves(m)))
        assert candidate.peak <= m * unit + 4 + costs.resident_bytes
        assert candidate.time == pytest.approx(times[m] + costs.fixed_seconds)


@pytest.mark.scripts
@settings(max_examples=150)
@given(
    st.integers(1, 10),
    st.integers(0, 10**6),
    st.floats(0.0, 1.05),
    st.sampled_from(["none", "end", "early"]),
    st.sampled_from([3, 50, 500]),
)
def test_never_over_budget(layers: int, seed: int, part: float, update: str, slots: int) -> None:
    """On random training graphs, at any budget from the floor up, with few slots too."""
    graph = training(layers, seed, skip=0.2, update=update)
    min_memory, peak = minimum_memory(graph), baseline(graph).peak
    budget = int(min_memory + part * (peak - min_memory))
    if len(chain_of(graph).blocks) < 2:
        return
    found = attempt("rotor", graph, budget, slots=slots)
    if isinstance(found, InfeasibleError):
        assert_honest(found, "rotor", graph, budget, slots=slots)
        return
    figures = simulate(graph, found.schedule, budget=budget).figures
    assert figures.peak <= budget
    assert figures.time >= baseline(graph).time * (1 - 1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_more_memory_is_never_slower(seed: int) -> None:
    graph = chain(12, seed=seed)
    peak = baseline(graph).peak
    times: list[float] = []
    for budget in range(peak // 3, peak + 1, peak // 40):
        found = attempt("rotor", graph, budget, slots=2000)
        if isinstance(found, ValidatedSolution):
            times.append(found.figures.time)
        else:
            assert not times
    assert times == sorted(times, reverse=True)
    assert len(times) > 10


def test_the_search_above_the_budget_wins_back_what_rounding_costs() -> None:
    """60 blocks in 60 slots: a block's tensors round up to twice their size."""
    graph = chain(60, seed=4)
    budget = baseline(graph).peak * 6 // 10
    chained = chain_problem("rotor", Problem(graph, budget), 200)
    costs = chain_costs(graph, chained.chain, chained.runs)
    free = budget - costs.resident_bytes
    rounded = ChainTable(single_options(costs), 60, free // 60).times()[60] + costs.fixed_seconds
    found, fine = rotor(graph, budget, slots=60), rotor(graph, budget, slots=2000)
    assert found.figures.time < rounded
    assert fine.figures.time <= found.figures.time < (rounded + fine.figures.time) / 2


def unread(blocks: int) -> Graph:
    """F_i makes y_i, large and read by no backward, R_i makes x_i of it: as a sum before a ReLU does.

    x0 ─ F1 ─ y1 ─ R1 ─ x1 ─ F2 ─ y2 ─ R2 ─ x2 ─ … ─ loss
    """
    draft = Draft("unread")
    x = [draft.tensor("x0", 100, Kind.INPUT)]
    for i in range(1, blocks + 1):
        y = draft.tensor(f"y{i}", 100)
        x.append(draft.tensor(f"x{i}", 100))
        draft.operation(f"F{i}", time=3, reads=[x[i - 1]], writes=[y])
        draft.operation(f"R{i}", time=1, reads=[y], writes=[x[i]])
    loss, g = draft.tensor("loss", 4), draft.tensor("g", 100, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[-1]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    for i in range(blocks, 0, -1):
        for name, read in (("BR", x[i]), ("BF", x[i - 1])):
            before, g = g, draft.tensor(f"g.{name}{i}", 100, Kind.GRADIENT)
            draft.operation(f"{name}{i}", time=2, reads=[before, read], writes=[g], phase=Phase.BACKWARD)
    return draft.graph([loss])


def test_an_input_that_no_backward_reads_is_not_kept() -> None:
    """At the plain peak, the table too finds the schedule that recomputes nothing."""
    graph = unread(6)
    plain = baseline(graph)
    chained = chain_problem("rotor", Problem(graph, plain.peak), 200)
    assert chained.blocks == 13
    costs = chain_costs(graph, chained.chain, chained.runs)
    times = (
        ChainTable(single_options(costs), plain.peak - costs.resident_bytes, 1).times() + costs.fixed_seconds
    )
    assert times[-1] == plain.time
    assert times[-2] > plain.time


def test_what_is_not_a_chain_is_refused_in_one_line() -> None:
    with pytest.raises(NotAcceptedError, match="no backward operations"):
        rotor(layered(30), 10**9)
    draft = Draft("clique")
    made = [draft.tensor("t", 10), draft.tensor("u", 10)]
    draft.operation("n", time=1, writes=made)
    draft.operation("m", time=1, reads=made, writes=[draft.tensor("v", 10)])
    draft.operation("B", time=1, reads=made, phase=Phase.BACKWARD)
    with pytest.raises(NotAcceptedError, match="clique is none: it has 1 block"):
        rotor(draft.graph(), 10**9)


def test_a_unet_is_taken_as_a_chain_that_keeps_its_skips() -> None:
    graph = unet(4)
    plain = baseline(graph)
    found = rotor(graph, plain.peak * 3 // 4)
    assert plain.time < found.figures.time < 1.2 * plain.time


def test_a_time_limit_still_gives_a_schedule() -> None:
    graph = chain(60, seed=1)
    budget = baseline(graph).peak // 2
    hurried = registry.solve("rotor", Problem(graph, budget), time_limit=0, bound_seconds=0)
    assert hurried.status == Status.FEASIBLE
    assert hurried.figures.peak <= budget
    assert hurried.figures.time >= rotor(graph, budget).figures.time


def test_the_device_may_be_smaller_than_the_budget() -> None:
    graph = chain(10, seed=1)
    plain = baseline(graph).peak
    machine = Machine(device_capacity=plain * 2 // 3)
    found = registry.solve("rotor", Problem(graph, plain, machine), bound_seconds=0)
    assert found.figures.peak <= plain * 2 // 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", ["rotor", "rk-rotor", "rockmate"])
def test_more_slots_than_bytes_are_the_bytes(solver: str) -> None:
    graph = training(2, 5)
    problem = Problem(graph, baseline(graph).peak - 8)
    many, enough = (
        registry.solve(solver, problem, settings={"slots": str(slots)}, bound_seconds=0)
        for slots in (2**31 - 1, problem.budget)
    )
    assert many.figures == enough.figures
