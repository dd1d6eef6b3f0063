"""The solvers by name: settings from text, one-line refusals, judgement of answers, others' solvers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import plug_ins
import pytest
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.graphs.generators import chain, layered
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.errors import InvalidScheduleError
from memplan.solvers.auto import members as portfolio
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    SolverResult,
    Status,
)
from memplan.solvers.recomputation.rockmate import rk_rotor
from memplan.solvers.registry import run as registry
from memplan.solvers.settings import parse_settings
from memplan.solvers.skipped import collecting, skipping


@dataclass(frozen=True)
class Every:
    count: int = 1
    rate: float = 0.5
    fast: bool = False
    name: str = "a"
    limit: int | None = None


def test_our_solvers_are_there_with_their_papers() -> None:
    found = {entry.name: entry for entry in registry.entries()}
    assert list(found)[:5] == ["auto", "store-all", "layer-checkpoint", "torch-partitioner", "chen-sqrt"]
    for entry in found.values():
        assert entry.accepts
        assert entry.source
        assert entry.summary


def test_settings_are_read_from_text() -> None:
    texts = {"count": " 3", "rate": "1e-3", "fast": "Yes", "name": "b", "limit": "7"}
    assert parse_settings("s", Every, texts) == Every(3, 0.001, True, "b", 7)
    assert parse_settings("s", Every, {}) == Every()


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("count", "1.5", "s: the setting count must be a whole number of at most 2^31, not '1.5'"),
        ("limit", "many", "s: the setting limit must be a whole number of at most 2^31, not 'many'"),
        ("rate", "", "s: the setting rate must be a number, not ''"),
        ("rate", "nan", "s: the setting rate must be a number, not 'nan'"),
        ("fast", "maybe", "s: the setting fast must be true or false, not 'maybe'"),
        ("counts", "1", "s has no setting 'counts': its settings are count, rate, fast, name, limit"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(key: str, text: str, line: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_settings("s", Every, {key: text})
    assert str(refusal.value) == line


def test_a_solver_without_settings_says_so() -> None:
    with pytest.raises(InputError, match=r"^store-all has no setting 'slots': it has none$"):
        registry.solve("store-all", Problem(chain(2), 10**9), settings={"slots": "3"})


def test_rotor_checks_its_settings() -> None:
    with pytest.raises(InputError, match=r"^rotor: slots must be 1 or more, not 0$"):
        registry.solve("rotor", Problem(chain(2), 10**9), settings={"slots": "0"})


def test_an_unknown_solver_is_answered_with_close_names() -> None:
    with pytest.raises(InputError, match=r"^unknown solver 'rottor': did you mean rotor"):
        registry.solve("rottor", Problem(chain(2), 10**9))
    with pytest.raises(InputError, match=r"did you mean .*store-all"):
        registry.entry("zzz")


def test_a_solution_carries_the_simulators_figures() -> None:
    graph = chain(6, seed=3)
    plain = baseline(graph)
    lines: list[str] = []
    found = registry.solve(
        "rotor", Problem(graph, plain.peak * 3 // 4), settings={"slots": "100"}, report=lines.append
    )
    assert found.lower_bound is not None
    assert found.figures.time > found.lower_bound > plain.time
    bound = found.bounds[0]
    assert (bound.seconds, bound.name, bound.order) == (found.lower_bound, "residency", "any")
    assert found.figures.peak <= plain.peak * 3 // 4
    assert found.settings == {"slots": 100, "blocks": 200}
    assert found.seconds > 0
    assert lines


def test_no_time_for_bounds_leaves_the_time_of_all_operations() -> None:
    graph = chain(6, seed=3)
    plain = baseline(graph)
    found = registry.solve("rotor", Problem(graph, plain.peak * 3 // 4), bound_seconds=0.0)
    computed = [bound.seconds for bound in found.bounds if not bound.form]
    assert computed == [found.lower_bound] == [plain.time]


def test_store_all_is_the_plain_schedule_or_nothing() -> None:
    graph = layered(30)
    plain = baseline(graph)
    found = registry.solve("store-all", Problem(graph, plain.peak))
    assert (found.figures, found.status, found.lower_bound) == (plain, Status.OPTIMAL, time_bound(graph))
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("store-all", Problem(graph, plain.peak - 1))
    assert refusal.value.least == plain.peak


PLUGIN = """
from dataclasses import dataclass
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import Schedule
from memplan.solvers.problem import SolverResult, Bound, Status

@dataclass(frozen=True)
class Settings:
    broken: bool = False
    bound: float = 0.0
    order: str = "any"

def solve(problem, options):
    schedule = baseline_schedule(problem.graph)
    if options.settings.broken:
        schedule = Schedule(schedule.verbs[1:], schedule.targets[1:], schedule.wheres[1:])
    bound = Bound(options.settings.bound, "theirs", options.settings.order)
    return SolverResult(schedule, Status.WITHIN_GAP, bounds=(bound,) if bound.seconds else ())
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two solvers of other packages: `theirs` works, `lost` can't be imported."""
    others = ("lost", "their_lost_solver"), ("rotor", "solver_theirs")
    plug_ins.install(tmp_path, monkeypatch, PLUGIN, *others)


@pytest.mark.usefixtures("plugin")
def test_solvers_of_other_packages_run_as_ours_do() -> None:
    graph = chain(4)
    assert [entry.name for entry in registry.entries()][-2:] == ["lost", "theirs"]
    assert registry.entry("rotor").module.startswith(".")
    found = registry.solve("theirs", Problem(graph, baseline(graph).peak))
    assert found.figures == baseline(graph)
    with pytest.raises(MissingPackageError, match="the solver lost can't be loaded: No module named"):
        registry.solve("lost", Problem(graph, 10**9))


@pytest.mark.usefixtures("plugin")
def test_a_schedule_that_breaks_a_rule_is_skipped_and_reported() -> None:
    """The baseline takes its place where that fits; else nothing was found."""
    graph = chain(4)
    found = registry.solve("theirs", Problem(graph, 10**9), settings={"broken": "true"})
    assert found.figures == baseline(graph)
    (note,) = found.notes
    start = (
        "internal error: theirs made a schedule that breaks the rule reads-present; it was skipped: step 0"
    )
    assert note.startswith(start)
    with pytest.raises(NotFoundError) as refused:
        registry.solve("theirs", Problem(graph, baseline(graph).peak - 1))
    (note,) = refused.value.notes
    assert note.startswith("internal error: theirs made a schedule that breaks the rule capacity")


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("order", ["any", "file"])
def test_a_bound_that_the_schedule_refutes_is_dropped_and_reported(order: str) -> None:
    graph = chain(4)
    time = baseline(graph).time
    settings = {"bound": str(1.01 * time), "order": order}
    found = registry.solve("theirs", Problem(graph, 10**9), settings=settings)
    assert found.figures == baseline(graph)
    assert found.lower_bound == time
    assert all(bound.name != "theirs" for bound in found.bounds)
    (note,) = found.notes
    assert note.startswith("internal error: the lower bound")
    assert "of theirs was dropped" in note


def broken(*_arguments: object, **_named: object) -> None:
    raise InvalidScheduleError("results", "nothing is there", step=None)


def test_other_candidates_than_the_skipped_one_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rk-rotor, all but what it starts from."""
    graph = chain(8)
    monkeypatch.setattr(rk_rotor, "candidate_of_runs", broken)
    budget = (minimum_memory(graph) + baseline(graph).peak) // 2
    found = registry.solve("rk-rotor", Problem(graph, budget), 30.0, bound_seconds=0.0)
    assert found.figures.time == registry.solve("rotor", Problem(graph, budget)).figures.time
    (note,) = found.notes
    assert note.startswith("internal error: rk-rotor made a schedule that breaks the rule results")


def test_what_a_portfolios_member_skips_is_reported() -> None:
    """Members are threads."""
    graph = chain(3)
    plain = SolverResult(baseline_schedule(graph), Status.HEURISTIC)

    def skips(_cancelled: object) -> SolverResult:
        with skipping("one"):
            broken()
        return plain

    with collecting() as notes:
        portfolio.run(Problem(graph, 10**9), [portfolio.Member("one", skips)], 2, Event())
    assert [note.partition(";")[0] for note in notes] == [
        "internal error: one made a schedule that breaks the rule results"
    ]


def test_where_nobody_collects_a_broken_rule_is_raised() -> None:
    with pytest.raises(InvalidScheduleError), skipping("theirs"):
        broken()


def test_solvers_that_need_links_are_those_that_refuse_a_machine_without() -> None:
    graph = chain(3)
    problem, refusing = Problem(graph, baseline(graph).peak), set[str]()
    entries = [entry for entry in registry.entries() if entry.name != "auto"]
    for entry in entries:
        try:
            registry.solve(entry.name, problem, 0.2, bound_seconds=0.0)
        except NotAcceptedError:
            refusing.add(entry.name)
    assert refusing == {entry.name for entry in entries if entry.needs_links}


def test_listing_the_solvers_imports_none() -> None:
    code = (
        "import sys; from memplan.solvers.registry import catalogue, run; names = run.entries();"
        "print([e.name for e in names if catalogue.SOLVERS + e.module in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
