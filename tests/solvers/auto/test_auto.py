"""The portfolio: never worse than its members, whatever the number of workers; its refusals; Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from threading import Event
from time import monotonic, process_time, sleep
from types import SimpleNamespace

import pytest
from ctrl_c import ctrl_c
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.instances.tiny import tiny_graphs
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.simulate import simulate
from memplan.solvers import clock
from memplan.solvers.auto import auto, with_transfers
from memplan.solvers.auto.workers import SolverWorkers
from memplan.solvers.bounds.lower_bounds import file_order
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.offloading.block_swap import block_swap
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.weight_offload import offload_greedy
from memplan.solvers.problem import (
    Bound,
    InfeasibleError,
    NotAcceptedError,
    Options,
    Problem,
    SolverResult,
    Status,
)
from memplan.solvers.recomputation.rockmate import rk_rotor
from memplan.solvers.recomputation.rounding import rounding
from memplan.solvers.recomputation.search import rounds, search
from memplan.solvers.registry import catalogue
from memplan.solvers.registry import run as registry

GRAPHS = [chain(6, seed=4), unet(2), layered(20, width=4)]
QUICK = {"moves": "300"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_is_never_worse_than_search_or_rk_rotor(graph: Graph, workers: int) -> None:
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    settings = QUICK | {"workers": str(workers), "gap": "0"}
    found = registry.solve("auto", problem, settings=settings, bound_seconds=0)
    assert found.figures.peak <= problem.budget
    for other in ("search", "rk-rotor"):
        try:
            chosen = QUICK if other == "search" else {}
            alone = registry.solve(other, problem, settings=chosen, bound_seconds=0)
        except (InfeasibleError, NotAcceptedError):
            continue
        assert found.figures.time <= alone.figures.time * (1 + 1e-9)


def test_where_all_fits_nothing_is_searched() -> None:
    graph = chain(6, seed=4)
    described: list[str] = []
    answer = auto.solve(Problem(graph, baseline(graph).peak), Options(report=described.append))
    assert answer.status == Status.OPTIMAL
    assert described == []


def test_a_refusal_is_its_own_and_names_a_budget_that_it_reaches() -> None:
    graph = unet(2)
    with pytest.raises(InfeasibleError, match="the smallest budget found by auto") as caught:
        registry.solve("auto", Problem(graph, minimum_memory(graph) // 2), settings=QUICK)
    assert caught.value.least is not None
    found = registry.solve("auto", Problem(graph, caught.value.least), settings=QUICK, bound_seconds=0)
    assert found.figures.peak <= caught.value.least


@pytest.mark.sampled(1)
@pytest.mark.parametrize("links", [Links(), Links(2**20, 2**20)], ids=["alone", "links"])
def test_below_the_minimum_memory_it_refuses_in_seconds(links: Links) -> None:
    """`search` would take minutes to look for the smallest budget with all its moves."""
    graph, machine = layered(300), Machine(links=links)
    min_memory = minimum_memory(graph, machine)
    begin = process_time()
    with pytest.raises(InfeasibleError, match=f"below the minimum memory of {min_memory:,} B") as caught:
        registry.solve("auto", Problem(graph, min_memory - 1, machine), bound_seconds=0)
    assert process_time() - begin < 30
    assert caught.value.least is None or caught.value.least >= min_memory


def test_without_compiled_code_at_hand_a_refusal_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """rk-rotor tells the least memory then."""
    monkeypatch.setattr(auto, "at_hand", lambda: False)
    monkeypatch.setattr(search, "solve", lambda *_, **_named: pytest.fail("the search would be compiled"))
    graph = unet(2)
    with pytest.raises(InfeasibleError, match="below the minimum memory") as caught:
        registry.solve("auto", Problem(graph, minimum_memory(graph) - 1), bound_seconds=0)
    assert caught.value.least is not None
    assert caught.value.least >= minimum_memory(graph)


@pytest.mark.parametrize("time_limit", [None, 1.0])
def test_where_rk_rotor_finds_nothing_a_refusal_has_the_search_compiled(
    time_limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first refusal on a machine would name the baseline's peak; a time limit is kept."""

    def refuse(problem: Problem, _options: Options) -> SolverResult:
        raise NotAcceptedError("no chain")

    monkeypatch.setattr(auto, "at_hand", lambda: False)
    monkeypatch.setattr(rk_rotor, "solve", refuse)
    graph = unet(2)
    peak, problem = baseline(graph).peak, Problem(graph, minimum_memory(graph) - 1)
    with pytest.raises(InfeasibleError, match="below the minimum memory") as caught:
        registry.solve("auto", problem, time_limit, bound_seconds=0)
    assert caught.value.smallest is not None
    assert (caught.value.smallest < peak) == (time_limit is None)
    caught.value.state_shares(peak)
    assert "recomputation saves nothing" not in str(caught.value)
    assert ("less was not found" in str(caught.value)) == (time_limit is not None)


@pytest.mark.scripts
def test_no_budget_that_holds_a_schedule_is_refused_as_below_the_floor() -> None:
    """Least budgets by enumeration."""
    for graph, _min_memory, _seconds, optima, _whole in tiny_graphs()[::5]:
        least = optima[0][0]
        found = registry.solve("auto", Problem(graph, least), settings=QUICK, bound_seconds=0)
        assert found.figures.peak <= least


@pytest.mark.parametrize("time_limit", [None, 4.0])
def test_the_residency_program_waits_for_the_compiler_only_where_time_is_limited(
    time_limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, waited = Event(), list[bool]()

    def residency(problem: Problem, seconds: float, cancelled: Callable[[], bool]) -> object:
        begun.set()
        return file_order(problem, seconds, cancelled)

    monkeypatch.setattr(auto, "prove", lambda *_: None)  # a proof would end it before
    monkeypatch.setattr(auto, "file_order", residency)
    monkeypatch.setattr(
        auto, "load", lambda *_, **_named: waited.append(begun.wait(20 if time_limit is None else 0))
    )
    graph = chain(6, seed=4)
    settings = auto.Settings(gap=0.0, workers=2, moves=20)
    auto.solve(Problem(graph, baseline(graph).peak * 3 // 4), Options(time_limit, settings))
    assert waited[0] == (time_limit is None)


@pytest.mark.parametrize("quick", [False, True])
def test_interrupted_while_the_search_is_compiled_it_gives_what_there_is(
    quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """quick: rounding or rk-rotor has ended by then."""
    graph, race = chain(6, seed=4), Incumbent()

    def load(*_: object) -> None:
        while quick and race.best == inf:
            sleep(0.01)
        raise KeyboardInterrupt

    for module in (auto, rounds):  # another test may have compiled the search in this process
        monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(
        auto, "precompile", lambda *_, **_named: None
    )  # takes as long as others take to find the best
    monkeypatch.setattr(rounds, "is_compiled", lambda _function: False)
    if not quick:
        monkeypatch.setattr(rounding, "solve", no_answer)
        monkeypatch.setattr(rk_rotor, "solve", no_answer)
        monkeypatch.setattr(auto, "file_order", no_answer)
    options = Options(settings=auto.Settings(gap=0.0, workers=2), race=race)
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    with nullcontext() if quick else pytest.raises(KeyboardInterrupt):
        answer = auto.solve(problem, options)
        assert answer.interrupted
        assert simulate(graph, answer.schedule, budget=problem.budget).figures.time <= race.best * (1 + 1e-9)


def no_answer(*_: object) -> SolverResult:
    raise NotAcceptedError("none")


@pytest.mark.scripts
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_what_is_said_to_be_within_the_gap_is(share: float) -> None:
    """Optima by enumeration; in other problems the search goes on to its end."""
    ended = 0
    for graph, _min_memory, _seconds, optima, whole in tiny_graphs()[::6]:
        budget, least = optima[len(optima) // 2]
        if least is None or not whole:
            continue
        found = registry.solve(
            "auto", Problem(graph, budget), settings=QUICK | {"gap": f"{share:.0%}"}, bound_seconds=0
        )
        assert found.lower_bound is not None
        assert found.lower_bound <= least * (1 + 1e-6)
        if found.status in (Status.WITHIN_GAP, Status.OPTIMAL):
            ended += 1
            assert found.figures.time * (1 - share) <= found.lower_bound * (1 + 1e-6)
    assert ended


def test_a_wide_gap_ends_a_search_that_would_take_minutes() -> None:
    graph = chain(60, seed=1)
    problem = Problem(graph, baseline(graph).peak * 7 // 10)
    race = Incumbent()
    answer = auto.solve(problem, Options(settings=auto.Settings(gap=0.5, moves=10**6), race=race))
    assert (answer.status, answer.interrupted) == (Status.WITHIN_GAP, False)
    assert race.history[-1].gap <= 0.5


def test_with_gap_0_it_ends_once_it_is_proven_that_nothing_is_faster() -> None:
    """With so many moves the search alone would take minutes."""
    graph = chain(6, seed=2)
    problem = Problem(graph, (baseline(graph).peak + minimum_memory(graph)) // 2)
    found = registry.solve("auto", problem, settings={"gap": "0", "moves": str(10**6)}, bound_seconds=0)
    assert (found.status, found.interrupted) == (Status.OPTIMAL, False)
    assert found.lower_bound == pytest.approx(found.figures.time, rel=1e-6)


@pytest.mark.parametrize("links", [Links(), Links(2**18, 2**18)], ids=["alone", "links"])
def test_without_a_time_limit_a_clock_ends_it_and_it_says_so(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many moves it would take minutes, and on a busy machine an hour."""
    for module in (auto, with_transfers):
        monkeypatch.setattr(module, "prove", lambda *_: None)
        monkeypatch.setattr(module, "default_seconds", lambda _operations: 1.5)
    graph, machine = chain(12, seed=1), Machine(links=links)
    problem = Problem(graph, (baseline(graph).peak + minimum_memory(graph, machine)) // 2, machine)
    begun = process_time()
    found = registry.solve("auto", problem, settings={"moves": str(10**6)}, bound_seconds=0)
    assert process_time() - begun < 20
    assert found.status in (Status.FEASIBLE, Status.HEURISTIC)
    assert not found.ending or found.ending.startswith("nothing faster in the last ")


@pytest.mark.scripts
def test_searches_elsewhere_go_on_while_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "prove", lambda *_: None)
    seeds, graph = list[int](), layered(20, width=4)

    def solve(problem: Problem, options: Options) -> SolverResult:
        seeds.append(options.settings.seed)
        if options.settings.seed in (2, 3):
            options.race.found(10.0**-options.settings.seed, "elsewhere")
        return search.solve(problem, replace(options, settings=replace(options.settings, moves=10)))

    monkeypatch.setattr(auto, "default_seconds", lambda _operations: 1e6)
    monkeypatch.setattr(auto, "search", SimpleNamespace(**{**vars(search), "solve": solve}))
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    registry.solve("auto", problem, settings={"workers": "1"}, bound_seconds=0)
    assert [seed for seed in seeds if seed > 1] == [2, 3, 4], "that of 4 finds nothing"
    seeds.clear()
    registry.solve("auto", problem, 20.0, settings={"workers": "1"}, bound_seconds=0)
    assert max(seeds) <= 1, "a time limit is divided among the members as before"


@pytest.mark.scripts
def test_interrupted_it_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the main thread only; the workers hear of it."""
    monkeypatch.setattr(auto, "prove", lambda *_: None)  # a proof would end it before
    graph = chain(40, seed=1)
    problem = Problem(graph, baseline(graph).peak * 7 // 10)
    auto.solve(problem, Options(settings=auto.Settings(moves=1)))  # compiled code is at hand then
    with ctrl_c(2.0):
        answer = auto.solve(problem, Options(settings=auto.Settings(gap=0.0, moves=10**6)))
    assert answer.interrupted
    assert answer.status == Status.FEASIBLE
    assert simulate(graph, answer.schedule, budget=problem.budget).figures.peak <= problem.budget


@pytest.mark.parametrize("settings", [{"workers": "-1"}, {"moves": "0"}, {"seed": "-1"}])
def test_settings_out_of_range_are_refused(settings: dict[str, str]) -> None:
    graph = chain(3)
    with pytest.raises(InputError, match=next(iter(settings))):
        registry.solve("auto", Problem(graph, baseline(graph).peak), settings=settings)


MOVING = Machine(links=Links(2**18, 2**18))


def test_with_links_every_solver_that_moves_tensors_is_asked() -> None:
    own = [entry for entry in registry.entries() if entry.module.startswith(".")]
    sharded = {"fsdp", with_transfers.SHARDED_FIRST, *with_transfers.SHARDED_OTHERS}  # fsdp is in the first
    asked = {"joint", *with_transfers.POLICIES, *with_transfers.OTHERS, *sharded} - {"search"}
    assert {entry.name for entry in own if entry.needs_links} == asked


@pytest.mark.scripts
def test_with_links_moves_and_seed_reach_the_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def module_of(one: catalogue.Entry) -> SimpleNamespace:
        module = catalogue.module_of(one)

        def solve(problem: Problem, options: Options) -> SolverResult:
            asked[one.name] = options.settings
            return module.solve(problem, options)

        return SimpleNamespace(Settings=module.Settings, solve=solve)

    def improved(problem: Problem, options: Options, known: list[tuple[Schedule, float]]) -> SolverResult:
        asked["last"] = options.settings
        return SolverResult(known[0][0], Status.HEURISTIC)

    monkeypatch.setattr(with_transfers, "module_of", module_of)
    monkeypatch.setattr(with_transfers, "prove", lambda *_: None)
    monkeypatch.setattr(joint, "improved", improved)
    graph = chain(6, seed=2)
    problem = Problem(graph, (minimum_memory(graph, MOVING) + 3 * baseline(graph).peak) // 4, MOVING)
    registry.solve("auto", problem, 8.0, {"seed": "7", "moves": "30", "workers": "2"}, bound_seconds=0)
    assert asked["search"] == search.Settings(30, 7)
    assert asked["joint"] == asked["last"] == joint.Settings(seed=7)
    assert asked["offload-greedy"] == offload_greedy.Settings(seed=7)


@pytest.mark.scripts
@pytest.mark.parametrize(("near", "seeds"), [(1e9, [7]), (0.0, [7, 9])])
def test_where_others_are_far_joint_begins_anew(
    near: float, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other random numbers; else it goes on from theirs."""
    asked, graph = list[int](), chain(6, seed=2)

    def module_of(one: catalogue.Entry) -> SimpleNamespace:
        module = catalogue.module_of(one)

        def solve(problem: Problem, options: Options) -> SolverResult:
            if one.name == "joint":
                asked.append(options.settings.seed)
            return module.solve(problem, options)

        return SimpleNamespace(Settings=module.Settings, solve=solve)

    monkeypatch.setattr(with_transfers, "module_of", module_of)
    monkeypatch.setattr(with_transfers, "prove", lambda *_: None)
    monkeypatch.setattr(with_transfers, "_NEAR", near)
    problem = Problem(graph, (minimum_memory(graph, MOVING) + 3 * baseline(graph).peak) // 4, MOVING)
    registry.solve("auto", problem, 8.0, {"seed": "7", "workers": "2", "gap": "0"}, bound_seconds=0)
    assert sorted(asked) == seeds


@pytest.mark.scripts
def test_one_of_the_others_that_overruns_its_time_is_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, graph = list[bool](), chain(6, seed=2)

    def module_of(one: catalogue.Entry) -> SimpleNamespace:
        module = catalogue.module_of(one)

        def solve(problem: Problem, options: Options) -> SolverResult:
            begin = monotonic()
            while one.name == "offmate" and not options.cancelled() and monotonic() < begin + 60.0:
                sleep(0.02)
            if one.name == "offmate":
                asked.append(options.cancelled())
            return module.solve(problem, options)

        return SimpleNamespace(Settings=module.Settings, solve=solve)

    monkeypatch.setattr(with_transfers, "module_of", module_of)
    monkeypatch.setattr(with_transfers, "prove", lambda *_: None)
    monkeypatch.setattr(with_transfers, "OTHERS", {"offmate": 0.05})
    problem = Problem(graph, (minimum_memory(graph, MOVING) + 3 * baseline(graph).peak) // 4, MOVING)
    registry.solve("auto", problem, 8.0, {"workers": "2", "gap": "0"}, bound_seconds=0)
    assert asked == [True]  # its limit is 0.4 s, and a second later it is asked


@pytest.mark.parametrize("workers", [1, 2])
def test_a_policy_that_takes_most_of_the_time_ends(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a large graph: it has nothing before its end, and another has a slower schedule by then."""
    moment, graph = [0.0], chain(4, uniform=True)
    problem = Problem(graph, baseline(graph).peak - 2**20, Machine(links=Links(2**20, 2**20)))

    def module_of(one: catalogue.Entry) -> SimpleNamespace:
        def solve(problem: Problem, options: Options) -> SolverResult:
            if one.name == "joint":
                slow = block_swap.Settings(blocks=3)
                return block_swap.solve(problem, replace(options, settings=slow))
            if one.name != "block-swap":
                raise NotAcceptedError("no other solver here")
            while workers > 1 and options.race.best == inf:
                sleep(0.01)
            moment[0] += 60.0
            if options.cancelled():
                raise KeyboardInterrupt
            return block_swap.solve(problem, options)

        return SimpleNamespace(Settings=catalogue.module_of(one).Settings, solve=solve)

    def fastest(_problem: Problem, _own: Options, known: list[tuple[Schedule, float]]) -> SolverResult:
        return SolverResult(known[0][0], Status.FEASIBLE)

    monkeypatch.setattr(clock, "monotonic", lambda: moment[0])
    monkeypatch.setattr(with_transfers, "module_of", module_of)
    monkeypatch.setattr(with_transfers, "prove", lambda *_: None)
    monkeypatch.setattr(joint, "improved", fastest)
    alone = registry.solve("block-swap", problem, bound_seconds=0)
    found = registry.solve("auto", problem, 100.0, {"workers": str(workers), "gap": "0"}, bound_seconds=0)
    assert found.figures.time == pytest.approx(alone.figures.time)


def test_a_worker_gets_settings() -> None:
    graph = chain(4)
    problem = Problem(graph, baseline(graph).peak, MOVING)
    with SolverWorkers(problem) as workers:
        assert workers.solve("search", {"seed": "3"}, 1.0, lambda: False).status == Status.OPTIMAL
        with pytest.raises(InputError, match="offload-greedy: seed must be from 0 to"):
            workers.solve("offload-greedy", {"seed": "-1"}, 1.0, lambda: False)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_without_patience_nothing_is_compiled_for_an_answer(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solvers that need no compiling answer, and a bound tells how far off they are."""
    monkeypatch.setattr(auto, "at_hand", lambda: False)
    monkeypatch.setattr(auto, "load", lambda _options: pytest.fail("the search was compiled"))
    monkeypatch.setattr(auto, "precompile", lambda *_given, **_named: pytest.fail("the search was compiled"))
    problem = Problem(graph, (baseline(graph).peak + minimum_memory(graph)) // 2)
    race = Incumbent(patience=0.0)
    found = registry.solve("auto", problem, bound_seconds=0, race=race)
    assert found.figures.peak <= problem.budget
    assert race.best <= found.figures.time * (1 + 1e-9)


def test_without_patience_the_search_answers_if_the_others_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problem: Problem, _options: Options) -> SolverResult:
        raise InfeasibleError("none", problem.budget, None, 0)

    for solver in (rounding, rk_rotor):
        monkeypatch.setattr(solver, "solve", refuse)
    monkeypatch.setattr(auto, "_residency", refuse)
    monkeypatch.setattr(auto, "at_hand", lambda: False)
    graph = chain(6, seed=4)
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    found = registry.solve("auto", problem, bound_seconds=0, race=Incumbent(patience=0.0))
    assert found.figures.peak <= problem.budget


def test_patience_ends_a_search_of_many_moves() -> None:
    graph = layered(60, width=4)
    problem = Problem(graph, (2 * baseline(graph).peak + minimum_memory(graph)) // 3)
    begun = process_time()
    found = registry.solve(
        "auto", problem, settings={"moves": "1000000"}, bound_seconds=0, race=Incumbent(patience=1.0)
    )
    assert process_time() - begun < 20
    assert found.figures.peak <= problem.budget


def test_on_large_graphs_search_waits_for_a_bound_that_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound for the traced order is near; that for any order comes half a second later, as near."""
    graph = chain(8, seed=3)
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    best = simulate(graph, rounding.solve(problem, Options()).schedule).figures.time
    searched, proved = list[str](), list[str]()

    def prove(_problem: Problem, tell: Callable[[Bound], None], *_rest: object) -> None:
        tell(Bound(best * 0.999, "traced", "file"))
        sleep(0.5)
        tell(Bound(best * 0.999, "any", "any"))
        proved.append("any")

    def improved(*_arguments: object) -> SolverResult:
        searched.append("improved")
        raise NotAcceptedError("no search")

    monkeypatch.setattr(auto, "_LARGEST_OPERATIONS", 1)
    monkeypatch.setattr(auto, "prove", prove)
    monkeypatch.setattr(search, "improved", improved)
    found = auto.solve(problem, Options(settings=auto.Settings(workers=1, gap=0.01)))
    assert simulate(graph, found.schedule).figures.time <= best * (1 + 1e-9)
    assert (proved, searched) == (["any"], [])
