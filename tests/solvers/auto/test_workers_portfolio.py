"""A portfolio survives what one of its lines does: raises, breaks a rule, dies. Errors cross processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from threading import Event, Timer
from time import monotonic, sleep

import memplan.cli
import memplan.planner
import memplan.runtime
import memplan.solvers
import pytest
import torch
from ctrl_c import ctrl_c
from memplan.graphs.errors import InputError, MemplanError
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.auto import auto
from memplan.solvers.auto import members as portfolio
from memplan.solvers.auto import with_transfers as auto_moving
from memplan.solvers.auto.members import Awaited, Member, PortfolioError
from memplan.solvers.auto.workers import ProcessFaultError, SolverWorkers
from memplan.solvers.clock import Clock
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.offloading.joint import joint
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    SolverResult,
    Status,
    ValidatedSolution,
)
from memplan.solvers.registry import run as registry
from memplan.solvers.registry.arena import ArenaError
from memplan.solvers.registry.catalogue import entry, module_of
from memplan.solvers.workers.precompile import precompile
from memplan.tracing.replaced import ConvertedError

GRAPH = chain(6, seed=4)
PROBLEM = Problem(GRAPH, baseline(GRAPH).peak)
MOVING = replace(PROBLEM, machine=Machine(links=Links(1e12, 1e12)), budget=PROBLEM.budget * 3 // 4)
LONG = chain(60, seed=2)
ENDLESS = Problem(LONG, baseline(LONG).peak // 4, Machine(links=Links(1e6, 1e6)))
"""joint reaches no bound here, and searches on until it is stopped."""
FAULTS = [RuntimeError("two\nlines"), InputError("no"), MemoryError(), SystemExit(3), RecursionError("deep")]


def works() -> SolverResult:
    return SolverResult(baseline_schedule(GRAPH), Status.HEURISTIC)


def raising(error: BaseException) -> Member:
    def solve(_cancelled: object) -> SolverResult:
        raise error

    return Member("broken", solve)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_line_that_raises_is_told_and_the_others_go_on(error: BaseException) -> None:
    lines = [raising(error), Member("sound", lambda _cancelled: works())]
    outcomes = portfolio.run(PROBLEM, lines, 2, Event())
    assert len(outcomes.answers) == 1
    (line,) = outcomes.faults
    assert line.startswith(f"broken failed: {type(error).__name__}: ")
    assert "\n" not in line


def test_a_schedule_that_breaks_a_rule_is_its_lines_fault() -> None:
    nothing = SolverResult(Schedule.of([]), Status.OPTIMAL)
    lines = [Member("idle", lambda _cancelled: nothing), Member("sound", lambda _cancelled: works())]
    outcomes = portfolio.run(PROBLEM, lines, 1, Event())
    assert [answer for answer, _figures in outcomes.answers] != [nothing]
    assert outcomes.faults[0].startswith("idle failed: InvalidScheduleError: operation F1 never runs")


def test_only_faults_are_a_fault() -> None:
    with pytest.raises(PortfolioError, match="broken failed: MemoryError"):
        portfolio.run(PROBLEM, [raising(MemoryError())], 1, Event())


def test_lines_that_are_cut_off_before_they_have_anything_are_no_fault() -> None:
    """Time was over: another had told of a schedule, and nobody has one to give."""

    def cut_off(_cancelled: object) -> SolverResult:
        raise KeyboardInterrupt

    outcomes = portfolio.run(PROBLEM, [Member("cut off", cut_off)], 1, Event(), race=found_before())
    assert (outcomes.answers, outcomes.refusals, outcomes.faults) == ([], [], [])
    assert not outcomes.interrupted


@pytest.mark.parametrize("problem", [replace(PROBLEM, budget=PROBLEM.budget * 3 // 4), MOVING])
def test_auto_says_so_where_time_was_over_before_any_line_had_a_schedule(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "_attempt", lambda *_given, **_named: None)
    with pytest.raises(NotFoundError, match=r"^auto found no schedule within .* B in its time, nor that"):
        registry.solve(auto.NAME, problem, 0.2, {"gap": "0"}, bound_seconds=0.0)


def test_what_the_best_line_found_is_waited_for_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it takes long to give it; one that has nothing is left behind sooner."""
    monkeypatch.setattr("memplan.solvers.workers.process.LAST_SECONDS", 0.2)
    race, end, gave_up = Incumbent(), Event(), Event()

    def slow(cancelled: Callable[[], bool]) -> SolverResult:
        race.found(1.0, "slow")
        while not cancelled():
            sleep(0.01)
        sleep(1.0)
        return works()

    def deaf(_cancelled: object) -> SolverResult:
        end.wait(60)
        gave_up.set()
        raise KeyboardInterrupt

    with ctrl_c(0.3):
        outcomes = portfolio.run(PROBLEM, [Member("slow", slow), Member("deaf", deaf)], 2, Event(), race=race)
    assert not gave_up.is_set()
    end.set()
    assert (len(outcomes.answers), outcomes.interrupted) == (1, True)


def test_a_line_that_does_not_end_on_ctrl_c_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in the midst of compiling, which takes minutes on a busy machine."""
    monkeypatch.setattr("memplan.solvers.workers.process.LAST_SECONDS", 0.2)
    compiled, stop = Event(), Event()

    def solve(_cancelled: object) -> SolverResult:
        compiled.wait(60)
        return works()

    members = [Member("sound", lambda _cancelled: works()), Member("deaf", solve)]
    try:
        with ctrl_c(0.5):
            outcomes = portfolio.run(PROBLEM, members, 2, stop)
        assert not compiled.is_set()
    finally:
        compiled.set()
    assert (len(outcomes.answers), outcomes.interrupted) == (1, True)


def test_after_the_time_limit_members_end_once_there_is_a_schedule() -> None:
    """Those that wait don't start. Until there is one, all go on."""
    ran = list[str]()

    def first(cancelled: Callable[[], bool]) -> SolverResult:
        assert not cancelled()
        ran.append("first")
        return works()

    def patient(cancelled: Callable[[], bool]) -> SolverResult:
        ran.append("patient")
        end = monotonic() + 60
        while not cancelled() and monotonic() < end:
            sleep(0.01)
        ran.append("cancelled" if cancelled() else "not cancelled")
        return works()

    lines = [Member("first", first), Member("patient", patient), Member("late", patient)]
    outcomes = portfolio.run(PROBLEM, lines, 1, Event(), clock=Clock(0.0))
    assert (ran, len(outcomes.answers), outcomes.interrupted) == (["first"], 1, False)
    ran.clear()
    outcomes = portfolio.run(PROBLEM, lines, 2, Event(), clock=Clock(0.5))
    assert len(outcomes.answers) >= 2
    assert "not cancelled" not in ran


def test_a_line_waits_for_others_until_the_answer_is_wanted() -> None:
    """One of these fails; the last does not end by itself."""
    awaited, stop = Awaited(), Event()

    def patient(cancelled: Callable[[], bool]) -> SolverResult:
        while not cancelled():
            sleep(0.01)
        return works()

    def waiting(cancelled: Callable[[], bool]) -> SolverResult:
        return awaited.all(cancelled)[0][0]

    def refused(_cancelled: object) -> SolverResult:
        raise InfeasibleError("refused", 5, 9, 7)

    lines = [awaited.line("refused", refused), awaited.line("sound", lambda _cancelled: works())]
    outcomes = portfolio.run(PROBLEM, [*lines, Member("waits", waiting)], 1, stop)
    assert (len(outcomes.answers), len(outcomes.refusals), outcomes.faults) == (2, 1, [])
    lines = [awaited.line("patient", patient), Member("waits", waiting)]
    begin = monotonic()
    outcomes = portfolio.run(PROBLEM, lines, 2, stop, clock=Clock(0.5), race=found_before())
    assert (len(outcomes.answers), outcomes.faults) == (2, [])
    assert monotonic() >= begin + 0.5


def found_before() -> Incumbent:
    race = Incumbent()
    race.found(1e9, "before")
    return race


def break_solver(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    def solve(_problem: object, _options: object) -> SolverResult:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(module_of(entry(solver)), "solve", solve)


def test_auto_tells_the_fault_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    break_solver(monkeypatch, "rk-rotor")
    found = solved(replace(PROBLEM, budget=PROBLEM.budget * 3 // 4), moves="20")
    assert found.notes == ("rk-rotor failed: ZeroDivisionError: by zero",)


@pytest.mark.parametrize("solver", ["joint", "offmate"])
def test_auto_with_links_tells_the_fault_of_a_line(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_solver(monkeypatch, solver)
    monkeypatch.setattr(auto_moving, "prove", lambda *_: None)  # a proof would end it before
    assert f"{solver} failed: ZeroDivisionError: by zero" in solved(MOVING, time_limit=2.0, gap="0").notes


def test_auto_with_links_keeps_the_schedule_where_joint_from_others_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def improved(*_all: object, **_named: object) -> SolverResult:
        raise ValueError("no")

    monkeypatch.setattr(joint, "improved", improved)
    monkeypatch.setattr(auto_moving, "prove", lambda *_: None)
    found = solved(MOVING, time_limit=4.0, gap="0")
    assert found.notes == ("joint from others failed: ValueError: no",)


def solved(problem: Problem, time_limit: float | None = None, **settings: str) -> ValidatedSolution:
    return registry.solve(auto.NAME, problem, time_limit, settings={"workers": "2", **settings})


@pytest.mark.scripts
def test_auto_with_links_ends_within_the_gap() -> None:
    """Without a limit its lines would take minutes."""
    found = solved(ENDLESS, gap="99.9%")
    assert (found.status, found.interrupted) == (Status.WITHIN_GAP, False)
    assert found.lower_bound is not None
    assert found.figures.time * 0.001 <= found.lower_bound < found.figures.time


@pytest.fixture
def compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes find it where the tests' own process has it, and don't compile for half a minute."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    precompile((code for codes in auto_moving.CODES.values() for code in codes), print, lambda: False)
    for solver in ("joint", "offmate"):
        with suppress(MemplanError):
            registry.solve(solver, ENDLESS, 0.1)


@pytest.mark.scripts
@pytest.mark.usefixtures("compiled_code")
def test_a_process_that_dies_costs_its_line() -> None:
    with SolverWorkers(ENDLESS) as workers:
        timer = Timer(1.0, lambda: next(iter(workers.pool.workers)).process.kill())
        timer.start()
        with pytest.raises(ProcessFaultError, match="its process died: exit status -9"):
            workers.solve("joint", {}, 60.0, lambda: False)
        with pytest.raises(InfeasibleError, match="the smallest budget found by store-all is"):
            workers.solve("store-all", {}, 5.0, lambda: False)


@pytest.mark.scripts
@pytest.mark.usefixtures("compiled_code")
def test_a_process_gives_its_best_so_far_when_it_is_asked_to_end() -> None:
    """The interruption is passed on, and what has been found by then comes back; its time was told before."""
    stop, race = Event(), Incumbent()
    with SolverWorkers(ENDLESS, race=race) as workers:
        with suppress(InfeasibleError, NotAcceptedError):  # it is up and running then
            workers.solve("joint", {}, 0.1, stop.is_set)
        Timer(1.0, stop.set).start()
        answer = workers.solve("joint", {}, 120.0, stop.is_set)
    assert answer.interrupted
    assert {standing.who for standing in race.history} == {"joint"}
    figures = simulate(ENDLESS.graph, answer.schedule, budget=ENDLESS.budget, machine=ENDLESS.machine).figures
    assert race.best == pytest.approx(figures.time, rel=1e-9)


@pytest.mark.scripts
@pytest.mark.usefixtures("compiled_code")
def test_auto_in_processes_keeps_what_they_found_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_moving, "_PROCESSES", 0)
    monkeypatch.setattr(auto_moving, "OTHERS", {"offmate": 1.0})
    with ctrl_c(6.0):
        found = solved(ENDLESS, time_limit=300.0)
    assert found.interrupted
    assert found.notes == ()


def every_error() -> list[type[MemplanError]]:
    for module in walk_packages(memplan.__path__, "memplan."):
        with suppress(ImportError):
            import_module(module.name)
    found, waiting = list[type[MemplanError]](), [MemplanError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("memplan.")]


MADE: dict[type[MemplanError], MemplanError] = {
    InvalidScheduleError: InvalidScheduleError("capacity", "too much", step=3, what="delete x", tensor="x"),
    InfeasibleError: InfeasibleError("auto", 5, 9, 7),
    NotFoundError: NotFoundError("auto", 9, 7),
    ArenaError: ArenaError("auto", Problem(chain(2), 5), 7),
    ConvertedError: ConvertedError("0.weight", torch.float16),
}


def test_every_error_of_ours_comes_through_pickle_as_it_was() -> None:
    kinds = every_error()
    assert len(kinds) >= 10
    for kind in kinds:
        infeasible = issubclass(kind, InfeasibleError)
        error = MADE.get(kind) or (kind("auto", 5, 9, 7) if infeasible else kind("one line"))
        recomputed = pickle.loads(pickle.dumps(error))
        assert type(recomputed) is kind
        assert str(recomputed) == str(error)
        assert vars(recomputed) == vars(error)
