"""Hiremate: passes against the simulator, hierarchies on random graphs, identical clusters, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.repeats import without_repeats
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode, prune, schedule_of
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    Status,
)
from memplan.solvers.recomputation.hierarchy.option import Option, default_option, select
from memplan.solvers.recomputation.hierarchy.passes import Pass, PassMoment, pass_of
from memplan.solvers.recomputation.hierarchy.piece import part, whole
from memplan.solvers.recomputation.hierarchy.tree import hierarchy_of
from memplan.solvers.recomputation.hiremate import h_ilp, hiremate
from memplan.solvers.recomputation.hiremate.hiremate import tree_of
from memplan.solvers.recomputation.hiremate.solve_levels import LEVEL_SOLVERS
from memplan.solvers.registry import run as registry
from odd_graphs import odd_graph
from recomputing import recomputing
from training_graphs import training


def solved(graph: Graph, budget: int, seconds: float = 10.0, **chosen: Any) -> Figures | None:
    """The simulated figures, None for a refusal."""
    setting = hiremate.Settings(cache="off", **chosen)
    try:
        answer = hiremate.solve(Problem(graph, budget), Options(seconds, setting))
    except InfeasibleError:
        return None
    figures = simulate(graph, answer.schedule, budget=budget).figures
    assert figures.peak <= budget
    return figures


def between(graph: Graph, share: float) -> int:
    low, high = minimum_memory(graph), baseline(graph).peak
    return int(low + (high - low) * share)


def graphs() -> st.SearchStrategy[Graph]:
    seeds = st.integers(0, 10**6)
    return st.one_of(
        st.builds(
            training,
            st.integers(2, 5),
            seeds,
            skip=st.sampled_from((0.0, 0.5)),
            update=st.sampled_from(("none", "end", "early")),
        ),
        st.builds(unet, st.integers(1, 4), seed=seeds),
        st.builds(chain, st.integers(3, 12), seed=seeds),
    )


@pytest.mark.scripts
@settings(max_examples=40)
@given(graph=graphs(), share=st.floats(0.2, 0.95), top=st.integers(2, 8), lower=st.integers(2, 6))
def test_hierarchies_of_random_graphs_stay_within_the_budget(
    graph: Graph, share: float, top: int, lower: int
) -> None:
    name = "sequential" if top % 2 else "h-partition"
    solved(graph, between(graph, share), 4.0, partitioner=name, top=top, lower=lower, peaks=2, saves=2)


def refusal(graph: Graph, **chosen: int | str) -> InfeasibleError:
    """Of a byte."""
    setting = hiremate.Settings(top=3, lower=4, peaks=2, saves=2, cache="off", **chosen)  # pyright: ignore
    with pytest.raises(InfeasibleError) as caught:
        hiremate.solve(Problem(graph, 1), Options(30.0, setting))
    return caught.value


@pytest.mark.parametrize(
    ("random", "partitioner"),
    [
        pytest.param(200630, "h-partition", id="a sum of two clusters that one's backward reads"),
        pytest.param(106, "sequential", id="results that nobody reads"),
        pytest.param(1648, "sequential", id="a last block that is all loss and backward"),
    ],
)
def test_whoever_has_too_little_is_told_what_is_enough(random: int, partitioner: str) -> None:
    """The lightest schedule of plain clusters holds, and the budget that the refusal names is reached."""
    source = Random(random)
    if random == 200630:
        source.random()
    graph = odd_graph(source)
    for leaf in ("plain", "h-ilp"):
        least = refusal(graph, leaf=leaf, partitioner=partitioner).least
        assert least is not None
        found = solved(
            graph, least, 30.0, leaf=leaf, partitioner=partitioner, top=3, lower=4, peaks=2, saves=2
        )
        assert found is not None


@settings(max_examples=60)
@given(graph=graphs(), seed=st.integers(0, 10**6))
def test_a_pass_through_the_whole_graph_takes_what_the_simulator_says(graph: Graph, seed: int) -> None:
    runs = [(s.target, s.where) for s in recomputing(graph, Random(seed)) if s.verb == Verb.COMPUTE]
    root = whole(graph, range(len(graph.operations)), ())
    number = {operation: index for index, operation in enumerate(root.operations)}
    kept = root.piece
    if any(kept.fixes) or (graph.producers.counts() > 1).any():
        return
    taken = pass_of(
        kept,
        [(number[operation], mode) for operation, mode in runs],
        {x for x, result in enumerate(kept.result) if result},
        frozenset(range(kept.operations)),
    )
    figures = simulate(graph, schedule_of(graph, runs)).figures
    assert taken.bytes + int(graph.tensors.bytes[graph.resident].sum()) == figures.peak
    assert taken.time == pytest.approx(figures.time)
    assert taken.runs == tuple((number[operation], mode) for operation, mode in prune(graph, runs))


@pytest.mark.scripts
def test_a_hierarchy_costs_less_time_than_its_clusters_being_run_whole() -> None:
    graph = chain(16, seed=4)
    budget = between(graph, 0.4)
    plain, flat = solved(graph, budget, leaf="plain", top=4, lower=4), solved(graph, budget, top=40)
    deep = solved(graph, budget, top=4, lower=4)
    assert deep is not None
    assert flat is not None
    assert flat.time <= deep.time * 1.01
    assert plain is None or deep.time <= plain.time * 1.01


def test_identical_clusters_are_one_problem() -> None:
    few, many = (
        hierarchy_of(graph, tree_of("sequential", graph, len(graph.operations) // 8, 10))
        for graph in (chain(16, uniform=True), chain(64, uniform=True))
    )
    assert len(few.top) == 4
    assert len(many.top) == 16
    assert len(few.specs) == len(many.specs) <= 3


def test_a_killed_or_repeated_solve_finds_its_clusters_solved(tmp_path: Path) -> None:
    graph = training(6, 3)
    problem = Problem(graph, between(graph, 0.75))
    setting = hiremate.Settings(cache=str(tmp_path), top=3, lower=4)
    first = hiremate.solve(problem, Options(20.0, setting))
    entries = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert entries
    recomputed = hiremate.solve(problem, Options(20.0, setting))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == entries
    times = [simulate(graph, answer.schedule).figures.time for answer in (first, recomputed)]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.scripts
def test_workers_find_the_same(tmp_path: Path) -> None:
    graph = training(5, 8)
    budget = between(graph, 0.5)
    alone = solved(graph, budget, 30.0, top=3, lower=4)
    together = solved(graph, budget, 30.0, top=3, lower=4, workers=2)
    assert alone == together


@settings(max_examples=40)
@given(graph=graphs(), seed=st.integers(0, 10**6), share=st.floats(1.0, 1.3))
def test_repeats_are_dropped_only_within_the_limit(graph: Graph, seed: int, share: float) -> None:
    runs = [(s.target, s.where) for s in recomputing(graph, Random(seed)) if s.verb == Verb.COMPUTE]
    before = simulate(graph, schedule_of(graph, runs)).figures
    limit = int(before.peak * share)
    after = simulate(graph, schedule_of(graph, without_repeats(graph, runs, limit, lambda: True))).figures
    assert after.peak <= limit
    assert after.time <= before.time


def test_with_room_enough_no_repeat_is_left() -> None:
    graph = training(5, 11)
    runs = [(s.target, s.where) for s in recomputing(graph, Random(1)) if s.verb == Verb.COMPUTE]
    assert len(without_repeats(graph, runs, 10**12, lambda: True)) == len(graph.operations)
    assert without_repeats(graph, runs, 10**12, lambda: False) == prune(graph, runs)


def test_options_are_selected_far_apart() -> None:
    graph = unet(3, seed=2)
    tree = tree_of("sequential", graph, 4, 100)
    part_of = hierarchy_of(graph, tree).specs[-1].piece
    option = default_option(part_of)
    assert select([option, option], 5) == [option]


@pytest.mark.parametrize(
    ("peaks", "count", "chosen"),
    [
        ((100, 90, 60, 40, 10, 0), 1, {100}),
        ((100, 90, 60, 40, 10, 0), 2, {100, 0}),
        ((100, 90, 60, 45, 10, 0), 3, {100, 45, 0}),
        ((100, 90, 60, 45, 10, 0), 4, {100, 60, 45, 0}),
        ((100, 90, 80, 20, 0), 3, {100, 80, 0}),
        ((100, 50, 50, 49, 0), 4, {100, 50, 49, 0}),
    ],
)
def test_options_are_selected_at_the_middles_of_intervals(
    peaks: tuple[int, ...], count: int, chosen: set[int]
) -> None:
    """Thesis, 3.4.5, by hand. The higher the peak, the faster; of two equal peaks the one that keeps less is
    slower."""
    nothing = Pass((), 0.0, frozenset(), frozenset(), frozenset(), ())
    options = [
        Option(
            replace(nothing, time=float(number), steps=(PassMoment(peak, frozenset(), frozenset()),)),
            nothing,
            nothing,
            nothing,
            saved=100 - number,
        )
        for number, peak in enumerate(peaks)
    ]
    assert {option.peak for option in select(options, count)} == chosen


def test_an_output_that_the_backward_reads_is_no_phantom_but_a_dependency() -> None:
    """x = f(a), y = g(x), both outputs: what g's backward reads of x is the upper level's to keep."""
    draft = Draft("compute")
    a = draft.tensor("a", 8)
    x, y, z = (draft.tensor(name, 4) for name in "xyz")
    gradient, back = draft.tensor("dy", 4), draft.tensor("dx", 4)
    for name, reads, writes in (("e", [], [a]), ("f", [a], [x]), ("g", [x], [y]), ("h", [x, y], [z])):
        draft.operation(name, time=1.0, reads=reads, writes=writes)
    draft.operation("loss", time=1.0, reads=[z], writes=[gradient])
    draft.operation("G", time=1.0, reads=[gradient, x], writes=[back])
    draft.operation("F", time=1.0, reads=[back, a], writes=[])
    graph = draft.graph()
    cluster = part(whole(graph, [0, 1, 2, 3], [4, 5, 6]).piece, [1, 2], [5, 6])
    option = default_option(cluster.piece)
    names = [graph.tensors.name[whole(graph, [0, 1, 2, 3], [4, 5, 6]).tensors[t]] for t in cluster.tensors]
    assert {names[t] for t in option.backward.reads} == {"dy", "x", "a"}
    assert {names[t] for t in option.first.writes} == {"x", "y"}
    assert option.saved == 0


@pytest.mark.parametrize("name", ["hiremate", "h-ilp"])
def test_a_graph_without_a_backward_part(name: str) -> None:
    graph = layered(9, width=3)
    with pytest.raises(
        NotAcceptedError, match=f"^{name} takes training graphs; {graph.name} has no backward"
    ):
        hiremate.solve_as(name, Problem(graph, 10**9), Options(), hiremate.Settings(cache="off"))


def test_the_plain_schedule_where_it_fits() -> None:
    graph = training(4, 2)
    answer = hiremate.solve(Problem(graph, baseline(graph).peak), Options(1.0))
    assert answer.status == Status.OPTIMAL
    assert simulate(graph, answer.schedule).figures == baseline(graph)
    assert len([s for s in answer.schedule if s.verb == Verb.COMPUTE]) == len(
        in_default_mode(range(len(graph.operations)))
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"partitioner": "metis"}, "unknown partitioner 'metis': h-partition, sequential"),
        ({"leaf": "h-ilp,magic"}, "unknown solver 'magic'"),
        ({"level": "joint"}, "joint moves tensors, in a cluster things are only recomputed: name another"),
        ({"leaf": "hiremate"}, "hiremate is no solver of its own clusters: name those that it would use"),
        ({"level": " , "}, "level must name a solver"),
        ({"whole": "plain"}, "unknown solver 'plain'"),
        ({"lower": 0}, "lower must be 1 or more, not 0"),
        ({"gap": 1.5}, "gap must be at least 0 and below 1, not 1.5"),
        ({"workers": -1}, "workers must be from 0 to 256, not -1"),
        ({"backend": "mpi"}, "unknown backend 'mpi': loky, dask, ray"),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, Any], message: str) -> None:
    graph = training(3, 1)
    with pytest.raises(InputError, match=message):
        solved(graph, between(graph, 0.5), **setting)


def test_h_ilp_has_the_settings_of_hiremate_but_for_what_the_framework_is_made_of() -> None:
    parts = {"partitioner": "h-partition", "leaf": "h-ilp", "level": "h-ilp", "whole": ""}
    assert list(registry.settings_of("hiremate").items()) == [
        *parts.items(),
        *registry.settings_of("h-ilp").items(),
    ]
    for name in parts:
        with pytest.raises(InputError, match=f"h-ilp has no setting '{name}': its settings are top, lower,"):
            registry.chosen_settings("h-ilp", {name: "h-ilp"})
    with pytest.raises(InputError, match="h-ilp: lower must be 1 or more, not 0"):
        registry.chosen_settings("h-ilp", {"lower": "0"})


@pytest.mark.parametrize("seed", range(3))
def test_rk_checkmate_on_the_leaves(seed: int) -> None:
    """Both programs find the fastest schedules of a cluster, so the wholes are about as fast."""
    graph = training(4, seed + 40)
    budget = between(graph, 0.6)
    own, theirs = (
        solved(graph, budget, 10.0, leaf=leaf, top=4, lower=6) for leaf in ("h-ilp", "rk-checkmate")
    )
    assert (own is None) == (theirs is None)
    if own is not None and theirs is not None:
        assert theirs.time == pytest.approx(own.time, rel=0.1)


def test_a_smallest_budget_is_named_only_where_no_search_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cut short, the clusters' options depend on the moment: what was found is told, nothing is claimed."""
    graph = training(5, 8)
    problem = Problem(graph, minimum_memory(graph))
    whole = hiremate.Settings(top=3, lower=4, leaf="plain", level="plain", cache="off")
    with pytest.raises(InfeasibleError) as refusal:
        hiremate.solve(problem, Options(30.0, whole))
    assert not isinstance(refusal.value, NotFoundError)
    assert refusal.value.least is not None
    monkeypatch.setitem(LEVEL_SOLVERS, "plain", lambda piece, *_rest: ([default_option(piece)], False))
    with pytest.raises(NotFoundError) as unknown:
        hiremate.solve(problem, Options(30.0, whole))
    assert (unknown.value.least, unknown.value.found) == (None, refusal.value.least)


@pytest.mark.scripts
@pytest.mark.parametrize("solver", [hiremate, h_ilp], ids=["hiremate", "h-ilp"])
def test_a_finished_answer_does_not_depend_on_the_seconds_given(solver: ModuleType) -> None:
    """Two schedules of the least accounted bytes have different peaks: it is always the same one."""
    graph = training(2, 874030153)
    named: set[int | None] = set()
    for seconds in (*(0.005 * i for i in range(1, 10)), 0.1, 1.0, 30.0) * 2:
        with pytest.raises(InfeasibleError) as refusal:
            solver.solve(
                Problem(graph, minimum_memory(graph)), Options(seconds, solver.Settings(cache="off"))
            )
        named.add(refusal.value.least)
    assert len(named - {None}) == 1


def test_a_sum_of_which_one_part_can_not_be_made_again_is_whole_before_it_is_read() -> None:
    """o0 changes w in place, so its part of s is kept; o1 and o2 add theirs in the first pass, or never."""
    draft = Draft("partly once")
    batch, w = draft.tensor("batch", 2, Kind.INPUT), draft.tensor("w", 2, Kind.PARAMETER)
    s, t1, t2, t3, t4 = (draft.tensor(f"t{size}{n}", size) for n, size in enumerate((1, 3, 2, 1, 4)))
    rows = (
        ("o0", Phase.FORWARD, [], [s], [w]),
        ("o1", Phase.FORWARD, [w], [s, t1], []),
        ("o2", Phase.FORWARD, [t1], [s, t2], []),
        ("o3", Phase.FORWARD, [t1, s], [t3], []),
        ("change1", Phase.BACKWARD, [s], [], [batch]),
        ("o4", Phase.FORWARD, [t1], [t3, t4], []),
        ("change0", Phase.UPDATE, [t2], [], [s]),
        ("change2", Phase.BACKWARD, [t3], [], [batch]),
        ("last0", Phase.UPDATE, [t4], [], []),
    )
    for name, phase, reads, writes, mutates in rows:
        draft.operation(name, time=1.0, phase=phase, reads=reads, writes=writes, mutates=mutates)
    graph = draft.graph([t2, s])
    piece = hierarchy_of(graph, tree_of("sequential", graph, 3, 4)).root.piece
    adding = [o for o, fixed in enumerate(piece.fixes) if fixed]
    assert len(adding) == 3
    assert all(piece.early[o] for o in adding)


@pytest.mark.parametrize("seed", [1010, 10520, 10963])
def test_sizes_far_apart_are_refused_in_one_line(seed: int) -> None:
    """Tebibytes beside bytes, and a budget of one byte beside megabytes."""
    chosen = {"top": "3", "lower": "4", "peaks": "2", "saves": "2", "cache": "off"}
    with pytest.raises(InfeasibleError, match="the smallest budget found by hiremate is"):
        registry.solve("hiremate", Problem(odd_graph(Random(seed)), 1), 30.0, chosen, bound_seconds=0.0)
