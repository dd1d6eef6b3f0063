"""`plan compare`: figures of schedules side by side, and of what several solvers find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain, layered
from memplan.planner.schedule.file import load_schedule
from memplan.planner.schedule.schedule import Verb

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a folder with a chain, and its schedules by rotor and by chen-sqrt."""
    monkeypatch.chdir(tmp_path)
    save_graph(chain(12), "chain.json")
    run = lambda *words: CliRunner().invoke(main, [*words])  # noqa: E731
    for solver, budget in (("rotor", "60%"), ("chen-sqrt", "80%")):
        call = ("solve", "chain.json", "--budget", budget, "--solver", solver, "-o", f"{solver}.json")
        result = run(*call, "--bound-time", "0")
        assert result.exit_code == 0, result.stderr
    return run


def recomputed(path: str) -> set[str]:
    graph = load_graph("chain.json")
    schedule = load_schedule(path, graph).schedule
    runs = Counter(target for verb, target, _where in schedule.rows() if verb == Verb.COMPUTE)
    return {graph.operations.name[target] for target, count in runs.items() if count > 1}


def test_figures_are_those_of_show(plan: Plan) -> None:
    document = json.loads(plan("compare", "rotor.json", "chen-sqrt.json", "--json").stdout)
    times: dict[str, float] = {}
    for row in document["compared"]:
        shown = json.loads(plan("show", row["name"], "--json").stdout)
        same = ("time", "peak", "overhead", "budget", "baseline_time", "transfers")
        assert {key: row[key] for key in same} == {key: shown[key] for key in same}
        assert row["recomputed"] == len(shown["recomputed"])
        times[row["name"]] = row["time"]
    assert document["fastest"] == min(times, key=lambda name: times[name])
    assert [row["solver"] for row in document["compared"]] == ["rotor", "chen-sqrt"]


def test_what_only_one_recomputes(plan: Plan) -> None:
    document = json.loads(plan("compare", "rotor.json", "chen-sqrt.json", "--json").stdout)
    mine, theirs = recomputed("rotor.json"), recomputed("chen-sqrt.json")
    found = {name: {row["operation"] for row in rows} for name, rows in document["recomputed_by_one"].items()}
    assert found == {"rotor.json": mine - theirs, "chen-sqrt.json": theirs - mine}
    assert mine != theirs
    text = plan("compare", "rotor.json", "chen-sqrt.json").stdout
    assert f"{len(mine - theirs)} operations recomputed by rotor.json alone" in text
    assert text.count("fastest") == 2  # a head and a cell
    assert "transfers" not in text  # nothing is offloaded


def test_solvers_at_one_budget(plan: Plan) -> None:
    call = ("compare", "chain.json", "--budget", "60%", "--bound-time", "0", "--time-limit", "5s")
    result = plan(*call, "--solvers", "rotor,store-all,search", "--set", "search.moves=200", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    rows = {row["name"]: row for row in document["compared"]}
    assert rows.keys() == {"rotor", "search"}
    graph = load_graph("chain.json")
    assert rows["rotor"]["time"] == load_schedule("rotor.json", graph).predicted["time"]
    assert all(row["peak"] <= row["budget"] for row in rows.values())
    [refused] = document["refused"]
    assert refused["solver"] == "store-all"
    assert "no schedule within" in refused["message"]
    assert "store-all: no schedule within" in plan(*call, "--solvers", "rotor,store-all").stdout


def test_no_solver_with_a_schedule(plan: Plan) -> None:
    result = plan("compare", "chain.json", "--budget", "60%", "--solvers", "store-all", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["compared"], document["fastest"]) == ([], None)


def test_schedules_of_different_graphs(plan: Plan) -> None:
    save_graph(layered(20), "dag.json")
    assert (
        plan("solve", "dag.json", "--budget", "100%", "--solver", "store-all", "-o", "d.json").exit_code == 0
    )
    result = plan("compare", "rotor.json", "d.json")
    assert result.exit_code == 0
    assert "the schedules are of different graphs" in result.stderr
    assert "fastest" not in result.stdout
    assert "alone" not in result.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("rotor.json", "one file: give two schedules, or a graph with --budget and --solvers A,B"),
        ("rotor.json chen-sqrt.json --budget 60%", "--budget goes with a graph and --solvers A,B"),
        ("rotor.json chen-sqrt.json --set gap=1", "--set goes with a graph and --solvers A,B"),
        (
            "chain.json rotor.json --solvers rotor",
            "--solvers compares on one graph: `plan bench` takes several",
        ),
        ("rotor.json --solvers rotor --budget 60%", "it is a schedule: its graph is expected here"),
        ("chain.json rotor.json", "it is a graph: `plan solve` makes a schedule of it"),
        ("chain.json --solvers rotar --budget 60%", "rotor"),
    ],
)
def test_bad_usage(words: str, line: str, plan: Plan) -> None:
    result = plan("compare", *words.split())
    assert result.exit_code == 2
    assert len([each for each in result.stderr.splitlines() if "error" in each]) == 1
    assert line in result.stderr
