"""`plan solve` gives each copy an address within the budget; `plan check` finds what is wrong with them."""

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import layered
from memplan.planner.addresses.addresses import lay_out
from memplan.solvers.problem import InfeasibleError, Problem, SolverResult, Status
from memplan.solvers.recomputation.tw_remat import tw_remat
from memplan.solvers.registry import arena
from memplan.solvers.registry.run import solve
from small_graphs import small_graph


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_graph(layered(20), "dag.json")
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def solved(plan):
    call = ("solve", "dag.json", "--budget", "75%", "--solver", "tw-remat", "--static-layout", "-o", "s.json")
    result = plan(*call, "--bound-time", "0", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_arena_is_within_the_budget(plan, solved):
    arena = solved["arena"]
    assert solved["peak"] <= arena["bound"] <= arena["bytes"] <= solved["budget"]
    checked = plan("check", "s.json", "--graph", "dag.json", "--json")
    assert checked.exit_code == 0, checked.stderr
    assert json.loads(checked.stdout)["arena"] == arena
    text = plan("check", "s.json", "--graph", "dag.json").stdout
    assert f"{arena['bytes']:,} B" in text


def test_without_addresses_live_bytes_count(plan):
    result = plan("solve", "dag.json", "--budget", "75%", "--solver", "tw-remat", "-o", "s.json", "--json")
    assert json.loads(result.stdout)["arena"] is None
    assert "addresses" not in json.loads(Path("s.json").read_text())


def test_a_graph_of_a_cuda_device_has_addresses(plan):
    document = json.loads(Path("dag.json").read_text())
    document["source"] = {"kind": "torch", "device": "cuda:0"}
    Path("dag.json").write_text(json.dumps(document))
    call = ("solve", "dag.json", "--budget", "75%", "--solver", "tw-remat", "--json")
    assert json.loads(plan(*call).stdout)["arena"] is not None
    assert json.loads(plan(*call, "--no-static-layout").stdout)["arena"] is None


def _changed(change):
    document = json.loads(Path("s.json").read_text())
    change(document["addresses"])
    Path("s.json").write_text(json.dumps(document))


@pytest.mark.usefixtures("solved")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda row: row["offsets"].pop(), "offsets for"),
        (lambda row: row.update(offsets=[0] * len(row["offsets"])), "are there at once and share bytes"),
        (lambda row: row.update(arena=row["arena"] - 1), "the arena has"),
        (lambda row: row.update(offsets=["x"]), "addresses.offsets[0]"),
        (lambda row: row.update(more=1), "more"),
        (lambda row: row.pop("arena"), "arena"),
    ],
)
def test_addresses_that_do_not_hold_are_one_line(plan, change, fault):
    _changed(change)
    result = plan("check", "s.json", "--graph", "dag.json")
    assert result.exit_code in (2, 5)
    assert fault in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_arena_above_another_budget(plan, solved):
    peak = solved["arena"]["bytes"] - 1
    result = plan("check", "s.json", "--graph", "dag.json", "--budget", f"{peak}B")
    assert result.exit_code == 5
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_reserve_is_left_free(plan):
    call = (
        "solve",
        "dag.json",
        "--budget",
        "100%",
        "--solver",
        "tw-remat",
        "--static-layout",
        "--bound-time",
        "0",
    )
    whole = json.loads(plan(*call, "--json").stdout)
    reserve = whole["budget"] // 5
    part = plan(*call, "--reserve", f"{reserve}B", "--json")
    assert part.exit_code == 0, part.stderr
    found = json.loads(part.stdout)
    assert (found["reserve"], found["budget"]) == (reserve, whole["budget"] - reserve)
    assert found["arena"]["bytes"] <= whole["budget"] - reserve
    assert "are left" in plan(*call, "--reserve", f"{reserve}B").stdout


def test_what_libraries_keep_is_left_free_of_a_budget_in_bytes(plan):
    document = json.loads(Path("dag.json").read_text())
    document["source"] = {"kind": "torch", "constant": 100}
    Path("dag.json").write_text(json.dumps(document))
    call = ("solve", "dag.json", "--solver", "tw-remat", "--json", "--bound-time", "0", "--budget")
    percent = json.loads(plan(*call, "75%").stdout)
    found = json.loads(plan(*call, f"{percent['budget'] + 100}B").stdout)
    assert (found["reserve"], found["budget"]) == (100, percent["budget"])
    assert percent["reserve"] == 0
    assert json.loads(plan(*call, f"{percent['budget']}B", "--reserve", "0B").stdout)["reserve"] == 0


@pytest.mark.parametrize("reserve", ["1TB", "lots", "-3B"])
def test_a_reserve_that_leaves_nothing(plan, reserve):
    result = plan("solve", "dag.json", "--budget", "60%", "--reserve", reserve)
    assert result.exit_code == 2
    assert "reserve" in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 3


def test_where_no_arena_fits_it_is_said():
    """store-all has one schedule, whose copies have no layout within its peak."""
    graph = small_graph(Random(2))
    peak = solve("store-all", Problem(graph, 10**9), bound_seconds=0).figures.peak
    with pytest.raises(InfeasibleError, match=r"no addresses within .*--no-static-layout") as error:
        solve("store-all", Problem(graph, peak), bound_seconds=0, addresses=True)
    least = error.value.least
    assert least is not None
    assert least > peak
    found = solve("store-all", Problem(graph, least), bound_seconds=0, addresses=True)
    assert found.layout is not None
    assert found.layout.size <= least


def test_each_further_question_is_for_clearly_less(monkeypatch):
    """Arenas a byte too large: for a hair less an indifferent solver gives nearly the same schedule."""
    graph, asked = layered(40, seed=1), list[int]()
    problem = Problem(graph, solve("store-all", Problem(graph, 10**9), bound_seconds=0).figures.peak)

    def answer(less):
        asked.append(less.budget)
        return SolverResult(solve("tw-remat", less, bound_seconds=0).schedule, Status.FEASIBLE)

    def too_large(rows, target, _effort):
        return SimpleNamespace(size=target + 1, bound=int(rows.live().max()))

    monkeypatch.setattr(arena, "lay_out", too_large)
    with pytest.raises(InfeasibleError, match="no addresses within"):
        arena.in_arena("tw-remat", problem, answer(problem), answer, lambda _line: None)
    first, second, third, fourth = asked
    assert first > second
    assert third <= 0.98 * second
    assert fourth <= 0.96 * third


@pytest.mark.parametrize(("limit", "limits"), [(8.0, [8.0, 2.0, 2.0, 2.0]), (None, [None] * 4)])
def test_further_tries_have_a_quarter_of_the_time_each(
    limit: float | None, limits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    own = tw_remat.solve

    def recorded(problem, options):
        given.append(options.time_limit)
        return own(problem, options)

    def too_large(rows, target, _effort):
        return SimpleNamespace(size=target + 1, bound=int(rows.live().max()))

    monkeypatch.setattr(tw_remat, "solve", recorded)
    monkeypatch.setattr(arena, "lay_out", too_large)
    graph = layered(60, seed=1)
    problem = Problem(graph, solve("store-all", Problem(graph, 10**9), bound_seconds=0).figures.peak)
    with pytest.raises(InfeasibleError, match="no addresses within"):
        solve("tw-remat", problem, limit, bound_seconds=0, addresses=True)
    assert given == limits


def test_a_solver_is_asked_for_less_until_the_arena_fits(monkeypatch):
    """Its schedule is then judged, and recorded, for the fewer bytes. Layouts here are first fit's."""
    monkeypatch.setattr(arena, "lay_out", lambda rows, target, _effort: lay_out(rows, target, 0))
    asked_again = 0
    for seed in (0, 1, 2, 3, 4):
        graph = layered(60, seed=seed)
        peak = solve("store-all", Problem(graph, 10**9), bound_seconds=0).figures.peak
        budget = solve("tw-remat", Problem(graph, peak), bound_seconds=0).figures.peak
        lines: list[str] = []
        problem = Problem(graph, budget)
        found = solve("tw-remat", problem, report=lines.append, bound_seconds=0, addresses=True)
        assert found.layout is not None
        assert found.budget is not None
        assert found.figures.peak <= found.budget <= budget
        assert found.layout.size <= budget
        if any("the arena has" in line for line in lines):
            asked_again += 1
            assert found.budget < budget
    assert asked_again == 3
