"""The search: its memory and time at every step against the simulator; its answers against exact ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from exact import optimal_time
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.compiled import compiled
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.report import compared
from memplan.planner.schedule.sequence import Run, in_default_mode, prune, runs_of, schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.annealing import seed
from memplan.solvers.problem import InfeasibleError, Options, Problem, SolverResult, Status
from memplan.solvers.recomputation.checkpointing import rotor
from memplan.solvers.recomputation.search import rounds as rounds_of_annealing
from memplan.solvers.recomputation.search import sequence as runs_in_slots
from memplan.solvers.recomputation.search import tree as memory
from memplan.solvers.recomputation.search.anneal import anneal
from memplan.solvers.recomputation.search.events import Sequence
from memplan.solvers.recomputation.search.instance import instance_of, runs_in, variants_in
from memplan.solvers.recomputation.search.rounds import Rounds, no_best
from memplan.solvers.recomputation.search.search import Settings, improved, solve
from memplan.solvers.recomputation.search.sequence import sequence, variants_of_sequence
from memplan.solvers.recomputation.search.tree import memory_tree, peak
from memplan.solvers.registry import run as registry
from not_none import not_none
from small_graphs import small_graph
from strategies import with_launches


def unread_sum() -> Graph:
    """A gradient with two contributions that nothing reads: it may be deleted between the two."""
    draft = Draft("unread-sum")
    x, y, z = draft.tensor("x", 4), draft.tensor("y", 2), draft.tensor("z", 3)
    sum_, end = draft.tensor("sum", 6, Kind.PARAMETER_GRADIENT), draft.tensor("end", 1)
    draft.operation("first", time=1, writes=[x])
    draft.operation("part", time=2, reads=[x], writes=[y, sum_])
    draft.operation("middle", time=1, reads=[y], writes=[z], workspace=9)
    draft.operation("other part", time=2, reads=[x, z], writes=[sum_, end])
    return draft.graph([end])


put, take = compiled(runs_in_slots.put), compiled(runs_in_slots.take)
undo, spread = compiled(runs_in_slots.undo), compiled(runs_in_slots.spread)
add, largest_in, peak_slot = compiled(memory.add), compiled(memory.largest_in), compiled(memory.peak_slot)
GRAPHS = [chain(4, seed=1), chain(3, seed=2, parameters=False), unet(2), layered(20, width=4)]
GRAPHS.append(unread_sum())
GRAPHS.append(with_launches(Random(1), replace(layered(20, width=4), name="launched"), (0.1, 0.5, 1.0)))


@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 16, 64]))
@settings(deadline=None, max_examples=30)
def test_the_tree_is_an_array_with_ranges(number: int, slots: int) -> None:
    random = np.random.default_rng(number)
    tree, array = memory_tree(slots), np.zeros(slots, np.int64)
    for _ in range(50):
        first, last, more, end = (int(k) for k in random.integers(1, slots - 1, 4))
        amount = int(random.integers(-50, 50))
        add(tree, first, last, amount)
        array[first : last + 1] += amount
        assert peak(tree) == array.max()
        assert array[peak_slot(tree)] == array.max()
        if more <= end:
            assert largest_in(tree, more, end) == array[more : end + 1].max()


def memory_of_runs(at: Sequence) -> list[int]:
    """At each run, by the tree."""
    return [largest_in(at.tree, int(slot), int(slot)) for slot in np.flatnonzero(at.variant >= 0)]


def plain_runs(graph: Graph) -> list[Run]:
    return in_default_mode(range(len(graph.operations)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("percent", [100, 80, 60])
def test_every_sequence_on_the_way_holds_with_the_figures_kept(graph: Graph, percent: int) -> None:
    """Hot, so that nearly every move is kept: each is replayed by the simulator."""
    limit = baseline(graph).peak * percent // 100
    rounds = Rounds(graph, limit, 1, 0, Options())
    at = sequence(rounds.instance, variants_in(rounds.instance, plain_runs(graph)))
    rounds.best = no_best(len(at.variant))
    seed(percent)
    repeats = 0
    for _ in range(300):
        hot = graph.operations.time.sum()
        anneal(rounds.instance, at, limit, 1, hot, hot, rounds.best)
        runs = runs_in(rounds.instance, variants_of_sequence(at))
        figures = simulate(graph, schedule_of(graph, runs)).figures
        assert len(prune(graph, runs)) == len(runs)
        assert figures.peak == peak(at.tree)
        assert figures.time == pytest.approx(max(at.seconds))
        afresh = sequence(rounds.instance, variants_in(rounds.instance, runs))
        assert memory_of_runs(at) == memory_of_runs(afresh)
        assert (at.useful[at.variant >= 0] == afresh.useful[afresh.variant >= 0]).all()
        repeats = max(repeats, len(runs) - len(graph.operations))
        best = rounds.runs()
        if best:
            held = simulate(graph, schedule_of(graph, best)).figures
            assert max(held.peak, limit) == rounds.best.peak[0]
            assert held.time == pytest.approx(rounds.best.seconds[0])
    assert repeats > 0


@pytest.mark.scripts
def test_undone_moves_leave_no_trace() -> None:
    graph = layered(20, width=4)
    instance = instance_of(graph)
    at = sequence(instance, variants_in(instance, plain_runs(graph)))
    before = (at.variant.copy(), at.tree.largest[1], at.useful.copy(), at.seconds[0])
    at.journal[0, 0] = 0
    slots = np.flatnonzero(at.variant >= 0)
    put(instance, at, int(slots[-1]) + 1, int(at.variant[slots[0]]))
    take(instance, at, int(slots[-1]))
    assert at.tree.largest[1] != before[1] or (at.variant != before[0]).any()
    undo(instance, at)
    assert (at.variant == before[0]).all()
    assert (at.useful == before[2]).all()
    assert (at.tree.largest[1], at.seconds[0]) == pytest.approx((before[1], before[3]))
    spread(instance, at)
    assert at.tree.largest[1] == before[1]


@given(st.integers(0, 10_000), st.floats(0.5, 0.95))
@settings(deadline=None, max_examples=25)
def test_answers_hold_on_graphs_with_all_that_graphs_may_have(number: int, part: float) -> None:
    """Changes in place, random operations, modes, summed gradients: the registry replays the answer."""
    graph = small_graph(Random(number))
    budget = int(baseline(graph).peak * part)
    try:
        found = registry.solve("search", Problem(graph, budget), settings={"moves": "200"}, bound_seconds=0)
    except InfeasibleError:
        return
    assert found.figures.peak <= budget


def test_a_sum_that_nothing_reads_takes_memory_only_while_it_is_made() -> None:
    """The least memory found is the one of exhaustive search; kept between its parts, the sum adds to it."""
    graph = unread_sum()
    least = next(budget for budget in range(100) if optimal_time(graph, budget) is not None)
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("search", Problem(graph, least - 1), bound_seconds=0)
    assert refusal.value.least == least
    found = registry.solve("search", Problem(graph, least), bound_seconds=0)
    assert found.figures.time == optimal_time(graph, least)


def test_it_is_never_above_its_start() -> None:
    graph = chain(6, seed=4)
    budget = baseline(graph).peak * 7 // 10
    start = registry.solve("rotor", Problem(graph, budget), bound_seconds=0)
    for moves in (1, 30):
        few = Options(settings=Settings(moves))
        answer = improved(Problem(graph, budget), few, runs_of(start.schedule))
        assert simulate(graph, answer.schedule, budget=budget).figures.time <= start.figures.time


def test_colder_replicas_take_the_faster_sequences() -> None:
    graph = chain(6, seed=4)
    count, limit = len(graph.operations), baseline(graph).peak
    rounds = Rounds(graph, limit, 1, 0, Options(), replicas=2)
    plain = [*range(count)]
    slow, fast = ([(o, 0) for o in order] for order in ([*plain, plain[0]], plain))
    states = [sequence(rounds.instance, variants_in(rounds.instance, runs)) for runs in (slow, fast)]
    wanted = states[::-1]
    rounds.exchange(states, 1e-9)
    assert [at is other for at, other in zip(states, wanted, strict=True)] == [True, True]
    rounds.exchange(states, 1e-9)  # so cold that the slower one never goes down
    assert states[0] is wanted[0]
    rounds.exchange(states, 1e9)  # so hot that any goes down
    assert states[0] is wanted[1]


@pytest.mark.parametrize("replicas", [2, 5])
def test_replicas_fit_the_budget_and_are_the_same_for_the_same_seed(replicas: int) -> None:
    graph = chain(8, seed=3)
    problem = Problem(graph, baseline(graph).peak * 6 // 10)
    settings = Settings(300, 1, replicas)
    answers = [solve(problem, Options(settings=settings)).schedule for _ in range(2)]
    assert list(answers[0].rows()) == list(answers[1].rows())
    assert simulate(graph, answers[0], budget=problem.budget).figures.peak <= problem.budget


def test_the_same_seed_gives_the_same_schedule() -> None:
    graph = chain(8, seed=3)
    problem = Problem(graph, baseline(graph).peak * 6 // 10)

    def steps(number: int) -> list[tuple[int, int, int]]:
        return list(solve(problem, Options(settings=Settings(300, number))).schedule.rows())

    assert steps(1) == steps(1)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_answer_does_not_depend_on_how_often_the_clock_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    graph = chain(8, seed=3)
    problem = Problem(graph, baseline(graph).peak * 6 // 10)
    found = set[tuple[tuple[int, int], ...]]()
    for seconds in (1e-9, 1e-4, 1e-3, 0.2, 1e9):
        monkeypatch.setattr(rounds_of_annealing, "_CHUNK_SECONDS", seconds)
        answer = solve(problem, Options(settings=Settings(moves=70, replicas=replicas)))
        found.add(tuple(runs_of(answer.schedule)))
    assert len(found) == 1


def test_reordering_alone_can_be_enough() -> None:
    """a makes much, b frees much: b before a needs no recomputation.

    x ──a──▶ big ──────────┐
    y ──b──▶ small ──use───┴─▶ end
    """
    draft = Draft("order")
    much = draft.tensor("much", 60)
    big = draft.tensor("big", 40)
    small, end = draft.tensor("small", 1), draft.tensor("end", 1)
    draft.operation("m", time=5.0, writes=[much])
    draft.operation("a", time=5.0, writes=[big])
    draft.operation("b", time=1.0, reads=[much], writes=[small])
    draft.operation("e", time=1.0, reads=[big, small], writes=[end])
    graph = draft.graph()
    assert baseline(graph).peak == 101
    found = registry.solve("search", Problem(graph, 61))
    assert (found.figures.time, found.figures.peak) == (12.0, 61)
    assert found.status == Status.OPTIMAL


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "percent", "optimum"),
    [
        ("unet", 80, 1.98),
        ("unet", 50, 6.97),
        ("segnet", 60, 0.423),
        ("segnet", 50, 40.66),
        ("fcn8", 70, 0.8915),
    ],
)
def test_published_optima_of_the_files_order_are_reached(
    public: Path, name: str, percent: int, optimum: float
) -> None:
    graph = load_graph(public / f"{name}.json")
    plain = baseline(graph)
    problem = Problem(graph, plain.peak * percent // 100)
    found = registry.solve("search", problem, bound_seconds=0)
    assert 100 * (found.figures.time / plain.time - 1) <= optimum * 1.01 + 0.01


def test_the_first_of_two_contributions_stays_where_it_is_read_in_between() -> None:
    """Eviction's sequence runs `second` twice; `sum` is read between the two."""
    draft = Draft("sum")
    whole, other, end = draft.tensor("sum", 0), draft.tensor("other", 8), draft.tensor("end", 1)
    draft.operation("first", time=1, writes=[whole])
    draft.operation("second", time=1, writes=[whole, other])
    middle = draft.tensor("middle", 5)
    draft.operation("reader", time=1, reads=[whole], writes=[middle], workspace=9)
    draft.operation("last", time=1, reads=[other, middle], writes=[end])
    graph = draft.graph([end])
    runs = in_default_mode([0, 1, 2, 1, 3])
    found = improved(Problem(graph, 14), Options(), runs)
    assert simulate(graph, found.schedule, budget=14).figures.time == 5


@pytest.mark.parametrize("seconds", [0.0, None])
def test_a_budget_in_which_the_plain_schedule_fits_is_never_refused(seconds: float | None) -> None:
    """Though an operation has a faster variant, and nothing reads a sum."""
    draft = Draft("sum")
    x, y, z = draft.tensor("x", 1), draft.tensor("y", 1, Kind.GRADIENT), draft.tensor("sum", 5, Kind.GRADIENT)
    w = draft.tensor("w", 3, Kind.PARAMETER_GRADIENT)
    draft.operation("first", time=1.0, writes=[x])
    draft.operation("part", time=3.5, reads=[x], writes=[y, z])
    draft.operation("gradient", time=3.5, reads=[x], writes=[w])
    draft.operation("other part", time=3.5, writes=[z], mutates=[w, y], phase=Phase.UPDATE)
    draft.operation("last", time=1.0, phase=Phase.UPDATE, modes=[Mode("fast", 0.5, 0, ())])
    graph = draft.graph([w])
    found = registry.solve("search", Problem(graph, baseline(graph).peak), seconds, bound_seconds=0.0)
    assert found.figures.peak <= baseline(graph).peak


def test_interrupted_it_gives_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(8, seed=3)
    problem = Problem(graph, baseline(graph).peak * 7 // 10)
    reported: list[str] = []

    def report(line: str) -> None:
        reported.append(line)
        if "vs. baseline" in line:
            raise KeyboardInterrupt

    answer = solve(problem, Options(report=report))
    assert answer.interrupted
    assert answer.status == Status.FEASIBLE
    figures = simulate(graph, answer.schedule, budget=problem.budget).figures
    assert figures.peak <= problem.budget
    over = figures.time / baseline(graph).time - 1  # as the result has it
    assert reported[-1] == f"search: best {compared(graph, figures.time)}"
    assert reported[-1].endswith(f", {over:+.1%} vs. baseline")


def test_an_interruption_while_rotor_finds_a_start_ends_the_search_with_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where annealing from the file's order leads nowhere. Rotor keeps its best so far and says so; nothing
    else is then asked for a start."""
    graph = chain(12, seed=3)
    problem = Problem(graph, baseline(graph).peak * 7 // 10)
    found = rotor.solve(problem, Options())
    usual, began_from = Rounds.anneal, list[list[Run]]()

    def anneal_the_second(rounds: Rounds, runs: list[Run]) -> None:
        began_from.append(runs)
        if len(began_from) == 2:
            usual(rounds, runs)

    def interrupted(_problem: Problem, _options: Options) -> SolverResult:
        return replace(found, interrupted=True)

    monkeypatch.setattr(Rounds, "anneal", anneal_the_second)
    monkeypatch.setattr(rotor, "solve", interrupted)
    answer = solve(problem, Options(settings=Settings(moves=1)))
    assert began_from == [plain_runs(graph), runs_of(found.schedule)]
    assert answer.interrupted
    assert answer.status == Status.FEASIBLE
    times = [simulate(graph, each.schedule, budget=problem.budget).figures.time for each in (answer, found)]
    assert times[0] <= times[1]


@pytest.mark.parametrize(("launch", "recomputed"), [(0.0, "b"), (2.0, "a")])
def test_what_is_made_again_is_what_the_thread_can_launch(launch: float, recomputed: str) -> None:
    """Either a (3 s on the device, nothing to launch) or b (1 s there, and its launch) is to run twice.

    a ──▶ big ────────┐         6 s on the device, 2 to launch with a twice
    b ──▶ other ──────┤         4 s on the device, 4 to launch with b twice, that is 4.0 s
    middle ── room ───┴──▶ end
    """
    draft = Draft("either")
    big, other, room = draft.tensor("big", 4), draft.tensor("other", 4), draft.tensor("room", 5)
    first, second = draft.tensor("first", 0), draft.tensor("second", 0)
    draft.operation("a", time=0.75, launch=0, writes=[big])
    draft.operation("b", time=0.5, launch=launch, writes=[other])
    draft.operation("early", time=0, reads=[big, other], writes=[first])
    draft.operation("middle", time=0, reads=[first], writes=[room])
    draft.operation("late", time=0, reads=[room, first], writes=[second])
    draft.operation("end", time=0, reads=[big, other, second])
    graph = draft.graph()
    found = registry.solve("search", Problem(graph, 9), bound_seconds=0)
    runs = [graph.operations.name[o] for o, _mode in runs_of(found.schedule)]
    assert runs.count(recomputed) == 2
    assert found.figures.time == max(1.25 + (0.5 if recomputed == "b" else 0.75), launch)


@pytest.mark.scripts
def test_with_launches_answers_and_bounds_stand_on_their_sides_of_the_optimum() -> None:
    """Of all orders and recomputations, by exhaustive search; the search finds it in most cases."""
    found, limited = list[bool](), 0
    for number in range(40):
        random = Random(number)
        graph = with_launches(random, small_graph(random), (0.0, 1.0, 3.0, 5.0))
        low, high = minimum_memory(graph), baseline(graph).peak
        problem = Problem(graph, (low + high) // 2)
        best = optimal_time(graph, problem.budget)
        try:
            answer = registry.solve("search", problem, bound_seconds=0.5)
        except InfeasibleError:
            continue
        assert best is not None
        assert answer.lower_bound is not None
        assert answer.lower_bound * (1 - 1e-9) <= best <= answer.figures.time * (1 + 1e-9)
        found.append(answer.figures.time <= best * (1 + 1e-9))
        limited += best > not_none(optimal_time(without_launches(graph), problem.budget))
    assert limited > 10
    assert found.count(False) <= 1


def without_launches(graph: Graph) -> Graph:
    return with_launches(Random(), graph, [0.0])
