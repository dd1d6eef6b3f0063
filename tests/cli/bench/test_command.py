"""`plan bench`: rows that can be trusted, a table that goes on where it stood, solvers that break."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from click.testing import Result
from memplan.cli.bench.arguments import chosen_contenders
from memplan.cli.bench.tables import comparison_lines
from memplan.comparison import run as comparison_run
from memplan.comparison.file import append_row, prepare, read_rows
from memplan.comparison.published import load_published, matches
from memplan.comparison.summary import refuted, standings
from memplan.comparison.tables import effort_tables
from memplan.comparison.trials import Outcome, Row
from memplan.graphs.cells import cell_text
from memplan.graphs.files.files import graph_digest
from memplan.graphs.generators import chain, unet
from memplan.instances.catalogue import FILES, corpora
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry


def table(path: str = "rows.csv") -> list[Row]:
    return list(read_rows(Path(path)).values())


@pytest.mark.scripts
def test_each_row_is_what_the_solver_finds_and_the_simulator_says(bench: Callable[..., Result]) -> None:
    words = ["graphs", "--solvers", "rotor,store-all", "--budgets", "100%,70%,20%", "--time-limit", "30"]
    result = bench(*words, "-o", "rows.csv", "--json")
    assert result.exit_code == 0, result.stderr
    assert "not graphs, left out: graphs/half.json, graphs/plan.json" in result.stderr
    reported = json.loads(result.stdout)
    rows = {(row.graph, row.budget_text, row.solver): row for row in table()}
    assert len(rows) == len(reported["rows"]) == 2 * 3 * 2
    for graph in (chain(6), unet(2)):
        plain = baseline(graph)
        for percent in (100, 70, 20):
            budget = plain.peak * percent // 100
            row = rows[graph.name, f"{percent}%", "rotor"]
            assert (row.budget, row.baseline_time, row.baseline_peak) == (budget, plain.time, plain.peak)
            assert (row.operations, row.sha256) == (len(graph.operations), graph_digest(graph))
            assert json.loads(row.settings) == registry.settings_of("rotor")
            if row.solved:
                found = registry.solve("rotor", Problem(graph, budget))
                assert (row.time, row.peak) == (found.figures.time, found.figures.peak)
                assert row.lower_bound == pytest.approx(found.lower_bound)
                file_order = [bound.seconds for bound in found.bounds if bound.order == "file"]
                assert row.traced_order_bound == (pytest.approx(file_order[0]) if file_order else None)
                assert row.time is not None
                assert row.overhead_percent == pytest.approx(100 * (row.time / plain.time - 1))
                assert found.lower_bound is not None
                assert row.gap_percent == pytest.approx(100 * (1 - found.lower_bound / row.time))
            else:
                assert row.outcome == Outcome.INFEASIBLE
                assert row.least_budget is not None
                assert max(budget, minimum_memory(graph) - 1) < row.least_budget
    assert sum(row.solved for row in rows.values()) >= 5
    assert 20 * baseline(unet(2)).peak // 100 < minimum_memory(unet(2))
    assert {rows[unet(2).name, "20%", solver].lower_bound for solver in ("rotor", "store-all")} == {inf}
    assert "Infinity" not in result.stdout
    assert rows[chain(6).name, "100%", "store-all"].overhead_percent == 0.0
    assert rows[chain(6).name, "70%", "store-all"].least_budget == baseline(chain(6)).peak


@pytest.mark.scripts
def test_what_the_table_has_is_not_solved_again(bench: Callable[..., Result]) -> None:
    def solved() -> int:
        return Path("notes").read_text().count("solved")

    def run(budgets: str, *more: str) -> None:
        note = Path("notes").absolute()
        words = ["graphs/chain.json", "--solvers", "fake", "--set", f"fake.note={note}", "-o", "rows.csv"]
        assert bench(*words, "--budgets", budgets, "--workers", 2, *more).exit_code == 0

    run("100%,120%")
    before = Path("rows.csv").read_bytes()
    assert (solved(), len(table())) == (2, 2)
    run("100%,120%")
    assert solved() == 2
    assert Path("rows.csv").read_bytes() == before
    run("100%,130%")
    assert (solved(), len(table())) == (3, 3)
    run("100%", "--time-limit", "50")  # another limit is another trial
    assert (solved(), len(table())) == (4, 4)
    run("120%", "--rerun")
    assert (solved(), len(table())) == (5, 4)
    whole = Path("rows.csv").read_bytes()
    Path("rows.csv").write_bytes(whole[:-40])  # killed while it wrote
    assert len(table()) == 4
    run("100%,120%,130%")
    assert Path("rows.csv").read_bytes().count(b"\n") == 1 + 4
    Path("rows.csv").write_bytes(before[:30])
    run("100%")
    assert (len(table()), solved()) == (1, 6)


def test_solvers_are_compared_cold(bench: Callable[..., Result]) -> None:
    """With a cache on disk, a row's time would depend on the rows before it."""
    words = ["graphs/chain.json", "--solvers", "fake", "--budgets", "100%", "-o", "rows.csv"]
    assert bench(*words).exit_code == 0
    assert bench(*words, "--set", "fake.cache=here").exit_code == 0
    assert [json.loads(row.settings)["cache"] for row in table()] == ["off", "here"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("does", "outcome", "message"),
    [
        ("lies", Outcome.FAULT, "internal error: fake made a schedule that breaks the rule"),
        ("aborts", Outcome.FAULT, "its process crashed: exit status -6"),
        ("raises", Outcome.FAULT, "ZeroDivisionError: over nothing"),
        ("exits", Outcome.FAULT, "its process crashed: exit status 3"),
    ],
)
def test_a_solver_that_breaks_costs_its_own_row(
    bench: Callable[..., Result], does: str, outcome: Outcome, message: str
) -> None:
    words = ["graphs/chain.json", "--solvers", "fake,store-all", "--budgets", "100%", "-o", "rows.csv"]
    result = bench(*words, "--set", f"fake.does={does}")
    assert result.exit_code == 0
    assert message in result.stdout
    broken, other = table()
    assert broken.outcome == outcome
    assert broken.message.startswith(message)
    assert (broken.time, broken.overhead_percent) == (None, None)
    assert other.outcome == Outcome.OK


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_solver_that_hangs_is_ended_with_what_it_started(
    bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_run, "GRACE_SECONDS", 4.0)
    monkeypatch.setattr("memplan.solvers.workers.process.LAST_SECONDS", 0.5)
    words = ["graphs/chain.json", "--solvers", "fake,store-all", "--budgets", "100%", "-o", "rows.csv"]
    note = Path("hung").absolute()
    result = bench(*words, "--set", "fake.does=hangs", "--set", f"fake.note={note}", "--time-limit", "1")
    assert result.exit_code == 0, result.stderr
    assert "fake on" in result.stdout
    assert [row.outcome for row in table()] == [Outcome.TIMEOUT, Outcome.OK]
    assert not alive(int(Path("hung.pid").read_text()))


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="sends a POSIX signal, looks into /proc")
def test_ctrl_c_leaves_the_rows_and_no_process(bench: Callable[..., Result], tmp_path: Path) -> None:
    del bench
    run = [sys.executable, "-c", "from memplan.cli.main import main; main()", "bench", "graphs/chain.json"]
    words = ["--solvers", "store-all,fake", "--budgets", "100%", "-o", "rows.csv"]
    note = tmp_path / "hung"
    fake = ["--set", "fake.does=hangs", "--set", f"fake.note={note}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen([*run, *words, *fake], env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (Path("hung.pid").exists() and Path("hung.pid").read_text().strip()):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _out, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: 1 of 2 rows are in rows.csv" in said
    assert [row.outcome for row in table()] == [Outcome.OK]
    assert not alive(int(Path("hung.pid").read_text()))


@pytest.mark.scripts
def test_what_pytorch_does_competes_once(bench: Callable[..., Result]) -> None:
    words = ["graphs/chain.json", "--budgets", "100%", "--bound-time", "0", "--baseline", "torch"]
    result = bench(*words, "--solvers", "store-all,layer-checkpoint", "-o", "rows.csv")
    assert result.exit_code == 0, result.stderr
    found = list(read_rows(Path("rows.csv")).values())
    assert [row.solver for row in found] == ["store-all", "layer-checkpoint", "torch-partitioner"]
    assert {row.outcome for row in found} == {"ok"}
    assert bench(*words[:-1], "jax").exit_code == 2
    given = {"torch-partitioner.share": "0.5"}
    assert [one.given for one in chosen_contenders("store-all", given, baselines=["torch"])] == [
        {},
        {"share": "0.5"},
        {},
    ]


@pytest.mark.scripts
def test_the_folder_of_the_corpora_is_theirs(bench: Callable[..., Result], tmp_path: Path) -> None:
    ours = FILES.parent
    result = bench(ours, "--solvers", "store-all")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "has memplan's own graphs: say which by --corpus public|models" in result.stderr
    words = ["--corpus", "public", "--solvers", "store-all", "--budgets", "100%", "--bound-time", "0"]
    result = bench(ours, *words, "-o", "rows.csv")
    assert result.exit_code == 0, result.stderr
    named = {row.graph for row in read_rows(Path("rows.csv")).values()}
    assert named == set(corpora()["public"].instances)


def test_a_gap_is_of_all_that_have_one() -> None:
    given = {one.solver: one.given for one in chosen_contenders("auto,rotor,rockmate", {}, "7%")}
    assert given == {"auto": {"gap": "7%"}, "rotor": {}, "rockmate": {"gap": "7%"}}


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no-graph": ([], 2, "nothing to compare on: give GRAPHS, or --corpus NAME"),
    "no-such-graph": (["none.json"], 2, "none.json: no such file"),
    "folder-without-graphs": (["empty"], 2, "empty: there is no graph in this folder"),
    "a-file-that-is-no-graph": (["graphs/plan.json"], 2, "graphs/plan.json: format is"),
    "unknown-solver": (["graphs", "--solvers", "rotor,chekmate"], 2, "did you mean checkmate"),
    "empty-solver": (["graphs", "--solvers", "rotor,"], 2, "unknown solver ''"),
    "unknown-setting": (["graphs", "--solvers", "rotor", "--set", "rotor.slot=3"], 2, "no setting 'slot'"),
    "wrong-setting": (["graphs", "--solvers", "rotor", "--set", "rotor.slots=x"], 2, "a whole number"),
    "setting-of-nobody": (
        ["graphs", "--solvers", "rotor", "--set", "slots=3"],
        2,
        "--set slots: settings are SOLVER.KEY=VALUE, and the solvers are rotor",
    ),
    "setting-of-another": (["graphs", "--solvers", "rotor", "--set", "fake.does=x"], 2, "solvers are rotor"),
    "gap-of-nobody": (
        ["graphs", "--solvers", "rotor", "--gap", "1%"],
        2,
        "--gap: of rotor none has such a setting",
    ),
    "two-gaps": (
        ["graphs", "--solvers", "auto", "--gap", "1%", "--set", "auto.gap=0"],
        2,
        "--gap and --set auto.gap= say the same: give one",
    ),
    "no-gap": (["graphs", "--solvers", "auto", "--gap", "near"], 2, "the setting gap must be a number"),
    "no-budget": (["graphs", "--budgets", "75%,much"], 2, "'much' is not a number of bytes"),
    "zero-budget": (["graphs", "--budgets", "0%"], 2, "must be above 0"),
    "time-limit": (["graphs", "--time-limit", "-1"], 2, "the time must be above 0 seconds and finite"),
    "workers": (["graphs", "--workers", "0"], 2, "0 is not in the range x>=1"),
    "suffix": (["graphs", "-o", "rows.json"], 2, "rows.json: the suffix must be .csv"),
    "folder-as-table": (["graphs", "-o", "graphs.csv"], 2, "cannot be written: it is no regular file"),
    "no-such-folder": (["graphs", "-o", "none/rows.csv"], 2, "none/rows.csv: cannot be written"),
    "another-table": (["graphs", "-o", "other.csv"], 2, "other.csv: not a table of plan bench"),
    "another-line": (["graphs", "-o", "line.csv"], 2, "line.csv: not a table of plan bench"),
    "no-text": (["graphs", "-o", "bytes.csv"], 2, "bytes.csv: not UTF-8 text"),
    "spoilt-row": (["graphs", "-o", "spoilt.csv"], 2, "spoilt.csv: line 2 is no row of this table"),
    "published": (["graphs", "--published", "graphs/plan.json"], 2, "not a table of published results"),
    "published-huge": (["graphs", "--published", "huge.json"], 2, "not a table of published results"),
    "published-rows": (["graphs", "--published", "bad.json"], 2, "not a table of published results"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line(bench: Callable[..., Result], case: str) -> None:
    words, code, line = ERRORS[case]
    Path("empty").mkdir()
    Path("graphs.csv").mkdir()
    others = {
        "other.csv": "a,b\n1,2\n",
        "line.csv": "one precious line",
        "bad.json": '{"rows": [{"graph": 1}]}',
        "huge.json": f'{{"rows": [{{"graph": "g", "budget_percent": {10**400}}}]}}',
    }
    for name, text in others.items():
        Path(name).write_text(text)
    Path("bytes.csv").write_bytes(b"\xff\xfe\n")
    prepare(Path("spoilt.csv"))
    with Path("spoilt.csv").open("a") as stream:
        stream.write("1,2,3\n")
    result = bench(*words)
    assert result.exit_code == code
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in result.stderr
    for name, text in others.items():
        assert Path(name).read_text() == text


def test_the_standings(rows: Callable[..., Row]) -> None:
    """Three places. a: 10, 20, -; b: 10, 10, 25; c solves nothing, and leaves the others' means alone."""
    a = [rows("a", "g", 60, 10.0, 2.0), rows("a", "g", 50, 20.0, 4.0), rows("a", "h", 60, None, 9.0)]
    b = [rows("b", "g", 60, 10.0), rows("b", "g", 50, 10.0), rows("b", "h", 60, 25.0)]
    found = {one.solver: one for one in standings([*a, *b, rows("c", "g", 60, None)])}
    assert (found["a"].rows, found["a"].solved, found["a"].wins, found["a"].overhead) == (3, 2, 1, 15.0)
    assert (found["b"].rows, found["b"].solved, found["b"].wins, found["b"].overhead) == (3, 3, 3, 10.0)
    assert (found["c"].solved, found["c"].wins, found["c"].overhead, found["c"].gap) == (0, 0, None, None)
    assert found["a"].common == 2
    assert found["a"].seconds == 3.0
    assert found["b"].gap == pytest.approx(100 * (10 / 110 + 10 / 110 + 25 / 125) / 3)
    assert standings([]) == []


def test_exact_searches_tell_how_far_they_came(rows: Callable[..., Row]) -> None:
    """Geometric mean of 90 and 0 nodes, shifted by 10: √(100 · 10) − 10 = 21.6."""
    one, two, three = (rows("exact", graph, 60, 10.0) for graph in "abc")
    found = [
        replace(one, own_gap_percent=0.0, nodes=90),
        replace(two, own_gap_percent=5.0, nodes=0),
        replace(three, own_gap_percent=1.0),
        rows("other", "a", 60, 12.0),
    ]
    (reported,) = effort_tables(found)
    assert reported.rows == [["3", "1", "2.00%", "5.00%", "21.6", "90", "exact"]]
    assert list(effort_tables(found[3:])) == []
    lines = [text.plain for text in comparison_lines(found, [])]
    assert sum(line.startswith("exact searches: own gap") for line in lines) == 1


def test_bounds_are_shared_and_a_wrong_one_is_told(rows: Callable[..., Row]) -> None:
    """At one place: a takes 120 s and claims 115, b takes 110 s."""
    a, b = rows("a", "g", 60, 20.0), rows("b", "g", 60, 10.0)
    better = replace(b, lower_bound=105.0)
    assert [one.gap for one in standings([a, better])] == [100 * 15 / 120, 100 * 5 / 110]
    assert refuted([a, better]) == []
    wrong = replace(a, lower_bound=115.0)
    assert refuted([wrong, b]) == [(wrong, b)]
    lines = [str(line) for line in comparison_lines([wrong, b], [])]
    assert "a on g at 60%: the lower bound 115 s is wrong, b takes 110 s" in lines


def test_what_is_impossible_is_told(rows: Callable[..., Row]) -> None:
    """One row's proof holds for all at its place; a schedule that repeats backward operations stands."""
    a, b, c = rows("a", "g", 60, None), rows("b", "g", 60, None), rows("c", "g", 60, 20.0)

    def cells(*reported: Row) -> list[str]:
        lines = [str(line).split() for line in comparison_lines(reported, [])]
        return [words[0] for words in lines[2 : 2 + len(reported)]]

    assert cells(a, b, c) == ["-", "-", "20.00*"]
    assert cells(replace(a, backward_once_bound=inf), b, c) == ["xb", "xb", "20.00*"]
    assert cells(replace(a, lower_bound=inf), b) == ["x", "x"]


def test_a_row_survives_the_file(rows: Callable[..., Row], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    awkward = replace(
        rows("a", 'a "graph", with\ncommas', 60, 1 / 3),
        message='"quoted", and more',
        settings="x",
        traced_order_bound=inf,
    )
    prepare(path)
    for one in (awkward, rows("b", "g", 50, None)):
        append_row(path, one)
    found, other = read_rows(path).values()
    assert found == replace(awkward, sha256=cell_text(awkward.sha256))  # with the line break escaped
    assert other == rows("b", "g", 50, None)


def test_published_results_stand_beside_ours(rows: Callable[..., Row], tmp_path: Path) -> None:
    """g at 60 %: ours ties within the rounding; at 50 %: the published 1.0 is over the budget, 5.0 is not;
    h: nothing published keeps the budget."""
    path = tmp_path / "published.json"
    lines = [
        {"graph": "g", "budget_percent": 60, "exact": [10.0, 60.0, 9.0], "fast": [12.0, 55.0, 1.0]},
        {
            "graph": "g",
            "budget_percent": 50,
            "exact": None,
            "fast": [1.0, 53.0, 1.0],
            "slow": [5.0, 50.0, 8.0],
        },
        {"graph": "h", "budget_percent": 60, "fast": [1.0, 70.0, 1.0], "over": True},
    ]
    path.write_text(json.dumps({"rows": lines, "source": "none"}))
    ours = [
        rows("a", "g", 60, 10.04),
        rows("b", "g", 60, 11.0),
        rows("a", "g", 50, 6.0),
        rows("a", "h", 60, 9.0),
    ]
    found = matches([*ours, rows("a", "k", 60, 1.0)], load_published(path))
    assert [(one.graph, one.percent) for one in found] == [("g", 60.0), ("g", 50.0), ("h", 60.0)]
    assert [one.published.method for one in found] == ["exact", "slow", ""]
    assert [one.solved and one.solved.solver for one in found] == ["a", "a", "a"]
    assert [one.at_least_as_good for one in found] == [True, False, True]
    assert not matches([rows("a", "g", 60, None)], load_published(path))[0].at_least_as_good
