"""Rounding: sequences from what may run again, beside the rules written down again, and what it finds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.residency.residency import TracedOrder, rising_bound
from memplan.solvers.bounds.residency.search import ResidencyBoundSearch
from memplan.solvers.problem import Bound, NotAcceptedError, NotFoundError, Options, Problem, Status
from memplan.solvers.recomputation.rounding import rounding
from memplan.solvers.recomputation.rounding.sequence import rows_of, sequence_of
from small_graphs import small_graphs

_ROOM = 4
"""Runs of an operation, on average, above which a sequence is given up."""


def late(graph: Graph, recomputed: set[int]) -> set[int]:
    """Those that may be asked for behind a change in place of what they touch."""
    asked = [set(row) for row in graph.input_lists]
    until: dict[int, int] = {}
    found: set[int] = set()
    for operation in range(len(asked) - 1, -1, -1):
        latest = max([operation, *(until.get(x, -1) for x in graph.operations.writes[operation].tolist())])
        touched = {*asked[operation], *graph.operations.writes[operation].tolist()}
        changes = [c for x in touched for c in graph.mutators[x].tolist() if c > operation]
        if changes and min(changes) < latest:
            found.add(operation)
        runs_until = latest if operation in recomputed - found else operation
        for x in asked[operation]:
            until[x] = max(until.get(x, -1), runs_until)
    return found


def far(graph: Graph, recomputed: set[int], reach: float) -> set[int]:
    """Those at the ends of ways of more than `reach` bytes, along which all is made again."""
    size, producers = graph.tensors.bytes, graph.producers.lists()
    writes = graph.operations.writes.lists()
    kept = {*np.flatnonzero(graph.resident).tolist(), *graph.results}
    found: set[int] = set()

    def longest(operation: int) -> float:
        later = [
            longest(producer)
            for x in graph.input_lists[operation]
            if x not in kept
            for producer in producers[x]
            if producer < operation and producer in recomputed - found
        ]
        return max(later, default=0) + sum(int(size[x]) for x in writes[operation])

    for operation in range(len(writes)):
        if longest(operation) > reach:
            found.add(operation)
    return found


def by_the_rules(graph: Graph, recomputed: set[int], moments: list[int], reach: float) -> list[int]:
    """sequence.py's docstring, tensor by tensor."""
    operations, producers = graph.operations, graph.producers.lists()
    recomputed = recomputed - late(graph, recomputed)
    recomputed = recomputed - far(graph, recomputed, reach)
    stays = {*np.flatnonzero(graph.resident).tolist(), *graph.results}
    there = {x for x, row in enumerate(producers) if not row}
    runs: list[int] = []
    for operation, inputs in enumerate(graph.input_lists):
        if operation in moments:
            touched = {*inputs, *operations.writes[operation].tolist()}
            for x, row in enumerate(producers):
                if (
                    x not in stays | touched
                    and recomputed.issuperset(row)
                    and max(row, default=-1) < operation
                ):
                    there.discard(x)
        burst: set[int] = set()
        waiting = [x for x in inputs if x not in there]
        while waiting:
            for producer in producers[waiting.pop()]:
                if producer not in burst:
                    burst.add(producer)
                    waiting += [x for x in graph.input_lists[producer] if x not in there]
        runs += [*sorted(burst), operation]
        there |= {x for x, row in enumerate(producers) if row and burst.issuperset(row)}
        there |= {x for x in operations.writes[operation].tolist() if max(producers[x]) == operation}
    return runs


@pytest.mark.scripts
@settings(max_examples=150)
@given(small_graphs(), st.integers(0, 10**6))
def test_sequences_follow_the_rules_and_hold(graph: Graph, seed: int) -> None:
    """Shared contributions, several outputs, changes in place; the simulator takes them."""
    random, rows = Random(seed), rows_of(graph)
    count = len(graph.operations)
    flags = np.array([random.random() < 0.8 for _ in range(count)])
    moments = sorted(random.sample(range(count), random.randint(0, count)))
    recomputed = set(np.flatnonzero(flags & ~rows.once).tolist())
    reach = random.choice([inf, random.randint(0, int(graph.tensors.bytes.sum()))])
    own = sequence_of(rows, flags, np.array(moments, np.int64), reach)
    theirs = by_the_rules(graph, recomputed, moments, reach)
    if own is None:
        assert len(theirs) > _ROOM * count - count
        return
    assert own.tolist() == theirs
    simulate(graph, schedule_of(graph, in_default_mode(theirs)), machine=Machine())


def test_too_many_runs_are_given_up() -> None:
    """Each step of the way back asks for all that is before it."""
    graph = chain(60, uniform=True, fast_forward=False)
    backward = np.arange(61, 121)
    assert sequence_of(rows_of(graph), np.ones(121, np.bool_), backward, inf) is None


@given(st.floats(0.0, 1.0), st.sampled_from([1, 8, 64, 512]))
def test_pieces_come_close_to_the_mean(fraction: float, pieces: int) -> None:
    chosen = fraction > rounding._thresholds(8 * pieces, pieces)
    assert abs(chosen.mean() - fraction) <= 0.5 / pieces + 1e-9
    half = chosen[: 4 * pieces]  # and in each half of the graph
    assert abs(half.mean() - fraction) <= 1.5 / pieces + 1e-9


@given(st.integers(0, 10**6))
def test_the_first_run_at_or_behind_a_place(seed: int) -> None:
    random = Random(seed)
    runs: list[int] = []
    for operation in range(random.randint(1, 8)):
        runs += [*sorted(random.sample(range(operation), random.randint(0, operation))), operation]
    place = random.randrange(len(runs))
    firsts = [runs.index(operation) for operation in range(max(runs) + 1)]
    assert rounding._first_run(np.array(runs), place) == bisect_left(firsts, place)


def bound_of(graph: Graph, budget: int) -> float:
    """For the file's order, in fractions."""
    program = ResidencyBoundSearch(graph, budget, "file", 60.0)
    program.run(whole=False)
    return program.time_of_all + program.best.extra


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.75, 0.5])
@pytest.mark.parametrize(
    "graph",
    [
        chain(1500, seed=3, fast_forward=False),
        chain(1500, uniform=True, parameters=False, fast_forward=False),
    ],
    ids=lambda graph: graph.name,
)
def test_large_chains_come_close_to_the_bound(graph: Graph, share: float) -> None:
    """Costs all different, and all the same."""
    budget = int(share * baseline(graph).peak)
    answer = rounding.solve(Problem(graph, budget), Options())
    figures = simulate(graph, answer.schedule, budget=budget).figures
    bound = bound_of(graph, budget)
    assert bound <= figures.time * (1 + 1e-9)
    assert figures.time <= 1.01 * bound


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lambda seed: unet(5, seed=seed), lambda seed: layered(60, seed=seed)])
def test_never_faster_than_the_bound_nor_above_the_budget(make: Callable[[int], Graph], seed: int) -> None:
    graph = make(seed)
    min_memory, peak = minimum_memory(graph), baseline(graph).peak
    found = 0
    for share in (0.3, 0.6, 0.9):
        problem = Problem(graph, int(min_memory + share * (peak - min_memory)))
        try:
            answer = rounding.solve(problem, Options(5.0))
        except NotFoundError:
            continue
        found += 1
        time = simulate(graph, answer.schedule, budget=problem.budget).figures.time
        assert time >= bound_of(graph, problem.budget) * (1 - 1e-9)
    assert found


@pytest.mark.parametrize("share", [0.75, 0.5])
def test_long_ways_with_skips_are_made_again_in_parts(share: float) -> None:
    """A U-Net's largest activations, of which all run again in fractions, lie on one way."""
    levels, draft = 100, Draft("u-net")
    tape: list[tuple[int, list[int]]] = []

    def run(reads: list[int], size: int) -> int:
        made = draft.tensor(f"t{len(tape)}", size)
        draft.operation(f"o{len(tape)}", time=1.0, reads=reads, writes=[made])
        tape.append((made, reads))
        return made

    x = draft.tensor("batch", 1, Kind.INPUT)
    skips: list[int] = []
    for level in [*range(levels), *range(levels)[::-1]]:
        reads = [x] if len(skips) < levels else sorted({x, skips[level]})
        for _convolution in range(3):
            x = run(reads, levels - level)
            reads = [x]
        skips += [x] if len(skips) < levels else []
    gradient = draft.tensor("loss", 1, Kind.GRADIENT)
    draft.operation("loss", time=1.0, reads=[x], writes=[gradient], phase=Phase.LOSS)
    for made, reads in reversed(tape):
        following = draft.tensor(f"g{made}", draft.size_of(made), Kind.GRADIENT)
        draft.operation(
            f"b{made}", time=2.0, reads=[gradient, *reads], writes=[following], phase=Phase.BACKWARD
        )
        gradient = following
    graph = draft.graph([gradient])
    budget = int(share * baseline(graph).peak)
    answer = rounding.solve(Problem(graph, budget), Options())
    figures = simulate(graph, answer.schedule, budget=budget).figures
    assert figures.time <= 1.1 * bound_of(graph, budget)


def test_seconds_that_count_more_run_again_less() -> None:
    """The one that cost most."""
    graph = unet(6, seed=1)
    search = ResidencyBoundSearch(graph, baseline(graph).peak * 3 // 4, "file", 60.0)
    search.run(whole=False)
    even = search.again_within(search.budget, [], np.ones(len(graph.operations)))
    assert even is not None
    most = int(np.argmax(even * search.facts.seconds))
    weights = np.ones(len(graph.operations))
    weights[most] = 1000.0
    less = search.again_within(search.budget, [], weights)
    assert less is not None
    assert less[most] < even[most]


def test_less_for_the_program_makes_more_run_again() -> None:
    """Beside a program of its own for the lower budget, with the same moments."""
    graph = unet(6, seed=1)
    budget = baseline(graph).peak * 3 // 4
    search = ResidencyBoundSearch(graph, budget, "file", 60.0)
    search.run(whole=False)
    before, seconds = search.best.extra, np.array(search.facts.seconds)
    even = np.ones(len(graph.operations))
    recomputed = search.again_within(budget * 9 // 10, [], even)
    assert recomputed is not None
    assert search.best.extra == before
    lower = ResidencyBoundSearch(graph, budget * 9 // 10, "file", 60.0)
    lower._in_fractions(search.chosen)
    assert recomputed @ seconds == pytest.approx(lower.best.extra, abs=2e-5 * search.time_of_all)
    assert search.again_within(0, [], even) is None


def test_what_fits_needs_nothing() -> None:
    graph = unet(4)
    answer = rounding.solve(Problem(graph, baseline(graph).peak), Options())
    assert answer.status is Status.OPTIMAL


def test_once_the_answer_is_requested_no_more_sequences_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tried = unet(6, seed=1), list[float]()
    options = Options(cancelled=lambda: options.race.best < inf)
    trial = rounding._Rounds._trial

    def counted(rounds: rounding._Rounds, *arguments: Any) -> Any:
        tried.append(rounds.options.race.best)
        return trial(rounds, *arguments)

    monkeypatch.setattr(rounding._Rounds, "_trial", counted)
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    assert rounding.solve(problem, options).schedule
    assert set(tried) == {inf}
    tried.clear()
    rounding.solve(problem, Options())
    assert set(tried) > {inf}


@pytest.mark.parametrize("graph", [chain(60, parameters=False), unet(6)], ids=lambda graph: graph.name)
def test_bounds_begin_with_the_moments_that_rounding_has_found(graph: Graph) -> None:
    budget, traced, told = baseline(graph).peak * 3 // 4, TracedOrder(), list[Bound]()
    rounding.solve(Problem(graph, budget), Options(), traced)
    found = rising_bound(graph, budget, None, told.append, lambda: False, traced=traced)
    alone = rising_bound(graph, budget, None, lambda _bound: None, lambda: False)
    fixed = ResidencyBoundSearch(graph, budget, "file", inf)
    fixed.run(whole=False)
    assert told[0].order == "file"
    assert told[0].seconds == pytest.approx(baseline(graph).time + fixed.best.extra)
    assert {bound.order for bound in told[1:]} == {"any"}
    assert found.bound == alone.bound


def test_nobody_waits_for_a_search_that_was_cut_short() -> None:
    graph, traced = unet(6), TracedOrder()
    assert traced.wait(lambda: True) is None
    traced.leave(ResidencyBoundSearch(graph, baseline(graph).peak // 2, "file", 0.0))
    assert traced.wait(lambda: False) is None
    ended = TracedOrder()
    ended.end()
    assert ended.wait(lambda: False) is None


def test_ways_that_use_the_host_are_refused() -> None:
    draft = Draft("host")
    x, y = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 1)
    offloaded = Mode("cpu", 1.0, 0, (y,), on_host=True)
    draft.operation("o", time=1.0, reads=[x], writes=[y], modes=(offloaded,))
    with pytest.raises(NotAcceptedError, match="on the device alone"):
        rounding.solve(Problem(draft.graph([y]), 1), Options())


def test_what_no_schedule_fits_is_not_found() -> None:
    graph = unet(4)
    with pytest.raises(NotFoundError):
        rounding.solve(Problem(graph, minimum_memory(graph) - 1), Options())
