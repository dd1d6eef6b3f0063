"""The residency program by minimum cuts, beside the same program as a linear one; flows beside networkx."""

from __future__ import annotations

from math import inf
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memplan.graphs.generators import layered, unet
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.bounds.residency.cuts import Network, part_of
from memplan.solvers.bounds.residency.facts import Facts
from memplan.solvers.bounds.residency.max_flow import SINK, SOURCE, UNLIMITED, arcs_between, minimum_cut
from memplan.solvers.bounds.residency.moments import Later, bytes_at
from memplan.solvers.bounds.residency.order import AFTER, BEFORE, Order, any_order, file_order
from memplan.solvers.bounds.residency.prices import NEAR, best_prices
from memplan.solvers.bounds.residency.windows import residency_program
from memplan.solvers.milp.planes import Planes
from memplan.solvers.milp.result import BackendError
from memplan.solvers.milp.safe_bounds import relaxed
from memplan.solvers.problem import OrderName
from small_graphs import small_graph, small_graphs

EQUAL = 2 * NEAR


@settings(max_examples=100)
@given(st.integers(0, 10**6))
def test_flows_equal_networkx(seed: int) -> None:
    random = Random(seed)
    nodes, arcs = random.randint(2, 12), random.randint(0, 40)
    pairs = [(random.randrange(nodes), random.randrange(nodes)) for _ in range(arcs)]
    pairs = sorted({(tail, head) for tail, head in pairs if tail != head and tail != SINK and head != SOURCE})
    if (SOURCE, SINK) in pairs:
        pairs.remove((SOURCE, SINK))
    capacities = np.array([random.choice([0, 1, 3, 8, 2**55, UNLIMITED]) for _ in pairs], np.int64)
    theirs = nx.DiGraph()
    theirs.add_nodes_from(range(nodes))
    for (tail, head), capacity in zip(pairs, capacities.tolist(), strict=True):
        theirs.add_edge(tail, head, **({} if capacity == UNLIMITED else {"capacity": capacity}))
    try:
        best = nx.maximum_flow_value(theirs, SOURCE, SINK)
    except nx.NetworkXUnbounded:
        return
    tail, head = (np.array(column, np.int32) for column in (zip(*pairs, strict=True) if pairs else ((), ())))
    flow, own = minimum_cut(arcs_between(nodes, tail, head), capacities)
    assert flow == best
    assert own[SOURCE]
    assert not own[SINK]
    assert capacities[own[tail] & ~own[head]].sum() == flow


def network_of(graph: Graph, budget: int, moments: list[int], order: Order) -> Network:
    facts = Facts(graph)
    parts = [part_of(facts, order(moment), budget) for moment in moments]
    return Network(facts, parts, budget, sum(facts.seconds) or 1.0)


def by_both(graph: Graph, budget: int, order: Order) -> tuple[float, float]:
    """By cuts and by a linear program, at all moments where an operation by itself fits."""
    facts = Facts(graph)
    moments = [k for k in range(len(graph.operations)) if facts.least_bytes(k) <= budget]
    network = network_of(graph, budget, moments, order)
    answer = best_prices(network, np.zeros(len(moments)))
    part = residency_program(facts, budget, [order(moment) for moment in moments])
    return answer.bound, relaxed(part.program).bound


def budgets(graph: Graph, most: int) -> range:
    low, high = minimum_memory(graph), baseline(graph).peak
    return range(low, high + 1, max(1, (high - low) // most))


@settings(max_examples=60)
@given(small_graphs())
@example(small_graph(Random(20_000)))  # HiGHS's prices after presolve bound a quarter of the solution's cost
@example(small_graph(Random(1_690_023)))
def test_in_the_files_order_nothing_is_lost(graph: Graph) -> None:
    """Shared contributions, several outputs, changes in place, modes, workspaces."""
    for budget in budgets(graph, 4):
        cuts, program = by_both(graph, budget, file_order(graph))
        assert cuts == pytest.approx(program, abs=EQUAL) or cuts == program == inf


@settings(max_examples=60)
@given(small_graphs())
def test_in_any_order_the_bound_is_no_higher(graph: Graph) -> None:
    for budget in budgets(graph, 4):
        cuts, program = by_both(graph, budget, any_order(Facts(graph).predecessors))
        assert cuts <= program + EQUAL


@pytest.mark.parametrize("graph", [unet(2), layered(14, seed=1)], ids=lambda graph: graph.name)
def test_generated_graphs(graph: Graph) -> None:
    met = 0
    for budget in budgets(graph, 5):
        cuts, program = by_both(graph, budget, file_order(graph))
        assert cuts == pytest.approx(program, abs=EQUAL) or cuts == program == inf
        met += 0.0 < cuts < inf
    assert met


@settings(max_examples=60)
@given(small_graphs(), st.integers(0, 10**6))
def test_every_price_gives_a_bound_and_excess_is_its_slope(graph: Graph, seed: int) -> None:
    """A cut is the least at its own prices: at others its plane lies above the bound there."""
    random = np.random.default_rng(seed)
    budget = (minimum_memory(graph) + baseline(graph).peak) // 2
    facts = Facts(graph)
    moments = [k for k in range(len(graph.operations)) if facts.least_bytes(k) <= budget]
    network = network_of(graph, budget, moments, file_order(graph))
    best = best_prices(network, np.zeros(len(moments))).bound
    prices = [random.random(len(moments)) * 10.0 ** random.integers(-2, 2) for _ in range(4)]
    cuts = [network.cut(row) for row in prices]
    for there, cut in zip(prices, cuts, strict=True):
        assert cut.bound <= best + EQUAL
        cost = float(np.array(facts.seconds)[cut.recomputed].sum()) / (sum(facts.seconds) or 1.0)
        assert cut.bound == pytest.approx(cost + there @ cut.excess, abs=1e-6)
        for other, second in zip(prices, cuts, strict=True):
            assert second.bound <= cut.bound + (other - there) @ cut.excess + 1e-9


def test_without_a_linear_program_the_bound_is_lower_and_true(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = unet(2)
    budget = (minimum_memory(graph) + baseline(graph).peak) // 2
    network = network_of(graph, budget, [*range(len(graph.operations))], file_order(graph))
    start = np.full(len(graph.operations), 0.5)
    best = best_prices(network, start).bound

    def broken(_planes: Planes) -> None:
        raise BackendError("highs gave up")

    monkeypatch.setattr(Planes, "highest", broken)
    assert 0.0 <= best_prices(network, start).bound <= best
    assert network.cut(start).bound <= best_prices(network, start).bound


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12))
def test_the_top_of_planes_is_proven_by_its_weights(seed: int, prices: int, count: int) -> None:
    random = np.random.default_rng(seed)
    constants, slopes = random.normal(size=count), random.normal(size=(count, prices))
    planes = Planes(prices, 3.0)
    for constant, row in zip(constants, slopes, strict=True):
        planes.add(float(constant), row)
    top = planes.highest()
    assert (constants + slopes @ top.prices).min() == pytest.approx(top.value)
    mean = top.weights @ slopes
    assert top.weights @ constants + 3.0 * np.maximum(mean, 0.0).sum() == pytest.approx(top.value, abs=1e-7)
    assert top.prices.min() >= 0.0
    assert top.prices.max() <= 3.0


@settings(max_examples=60)
@given(small_graphs(), st.integers(0, 10**6), st.sampled_from(["file", "any"]))
def test_bytes_at_moments_as_they_are_defined(graph: Graph, seed: int, order: OrderName) -> None:
    facts, random = Facts(graph), np.random.default_rng(seed)
    count = len(graph.operations)
    most = np.where(facts.once, 0.0, random.choice([0.0, 0.3, 1.0, 2.0], count))
    found = bytes_at(facts, Later.of(most), np.arange(count), order)
    sides = file_order(graph) if order == "file" else any_order(facts.predecessors)
    for t in range(count):
        recomputed, side = [0.0] * count, sides(t).side
        total = float(facts.least_bytes(t))
        for p in range(t, -1, -1):
            if side[p] != BEFORE:
                continue
            ended = any(change <= t for change in facts.ended_by.get(p, ()))
            for x in facts.outputs[p]:
                needs = [1.0 if side[use] == AFTER else recomputed[use] for use in facts.uses[x]]
                need = 1.0 if x in facts.results else max(needs, default=0.0)
                if t in facts.uses[x] or t in facts.producers[x]:
                    continue
                kept = max(0.0, need - (0.0 if ended else min(1.0, most[p])))
                total += facts.sizes[x] * kept / len(facts.producers[x])
                recomputed[p] = max(recomputed[p], need - kept)
        assert found[t] == pytest.approx(total)
