"""A graph with splits from the command line: chosen, checked, proven, refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.cli.solving import Found, Search
from memplan.cli.splits import Splits
from memplan.graphs.files.files import save_graph
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline, whole_document
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry
from memplan.solvers.splits import WORTH_ROUNDING
from split_graphs import split_graphs

GRAPHS = split_graphs(Random(1))

SEARCH = Search(None, "auto", None, {}, None, 0.0, addresses=None, reserve=None, machine_path=None)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole, *splits = GRAPHS
    region = {"loss": {"pieces": 2, "operations": ["head", "loss", "below"], "seed": []}}
    source = {"split": region, "accuracy": 1.0, **whole_document(whole)}
    save_graph(whole, "g.json", [replace(split, source=source) for split in splits])


def call(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == status, result.stderr
    return result


def times(budget: int) -> list[float]:
    """Return the seconds of checkmate's schedule of each graph, infinite if there is none."""
    found: list[float] = []
    for graph in GRAPHS:
        try:
            found.append(registry.solve("checkmate", Problem(graph, budget), bound_seconds=0).figures.time)
        except InfeasibleError:
            found.append(inf)
    return found


def least_budget() -> int:
    """Return the smallest budget with a schedule of any graph."""
    return next(b for b in range(min(map(minimum_memory, GRAPHS)), 99) if min(times(b)) < inf)


def solved(budget: int, *words: str) -> Any:
    asked = ("--budget", f"{budget}B", "--solver", "checkmate", "-o", "s.json")
    return json.loads(call("solve", "g.json", *asked, *words, "--json").stdout)


def test_the_fastest_is_taken_for_each_budget() -> None:
    taken: set[int] = set()
    for budget in (least_budget(), *range(least_budget() + 1, baseline(GRAPHS[0]).peak + 1, 5)):
        found, each = solved(budget), times(budget)
        rated = [one * (WORTH_ROUNDING if k else 1.0) for k, one in enumerate(each)]
        number = found["split"]["number"]
        taken.add(number)
        assert rated[number] == pytest.approx(min(rated))
        assert found["time"] == pytest.approx(each[number])
        assert found["split"]["lower_bound"] <= min(each) * (1 + 1e-9)
        assert found["baseline_peak"] == baseline(GRAPHS[0]).peak
        call("check", "s.json")
        call("check", "s.json", "--graph", "g.json")
    assert len(taken) > 2


def test_a_split_can_be_asked_for() -> None:
    budget = baseline(GRAPHS[0]).peak
    for number, seconds in enumerate(times(budget)):
        found = solved(budget, "--split-fixed", str(number))
        assert found["split"] is None
        assert found["time"] == pytest.approx(seconds)
    refused = call("solve", "g.json", "--budget", "9B", "--split-fixed", "7", status=2).stderr
    assert "there is no split 7: its last split is 3" in refused
    save_graph(GRAPHS[0], "whole.json")
    refused = call("solve", "whole.json", "--budget", "9B", "--split-fixed", "1", status=2).stderr
    assert "it has no splits (plan profile --split any makes some)" in refused


def test_a_schedule_is_of_its_split() -> None:
    least = least_budget()
    number = solved(least)["split"]["number"]
    assert number > 0
    # A start is solved on from in its own split.
    said = call("solve", "g.json", "--budget", f"{least}B", "--start", "s.json", "-o", "t.json").stdout
    assert "of all splits" not in said
    assert "valid" in call("check", "t.json").stdout
    assert "in pieces    3 operations in a region of 2 pieces, error 1.00" in call("show", "s.json").stdout
    call("report", "s.json", "-o", "r.html")
    save_graph(GRAPHS[0], "g.json")
    assert "made for another graph" in call("check", "s.json", "--graph", "g.json", status=6).stderr


def test_claims_are_proven_of_a_split() -> None:
    least = least_budget()
    solved(least, "--certificate", "c.json")
    assert "proven" in call("verify", "s.json", "--certificate", "c.json").stdout
    asked = ("--budget", f"{min(map(minimum_memory, GRAPHS)) - 1}B", "--certificate", "n.json")
    assert "of one split" in call("solve", "g.json", *asked, status=3).stderr
    assert not Path("n.json").exists()
    number = min(range(len(GRAPHS)), key=lambda k: minimum_memory(GRAPHS[k]))
    call("solve", "g.json", *asked, "--split-fixed", str(number), status=3)
    assert "no schedule: proven" in call("verify", "g.json", "--certificate", "n.json").stdout


def test_what_holds_of_all_splits_is_noted_once() -> None:
    graphs = [replace(graph, source={"device": "cpu", "measured": {}, **graph.source}) for graph in GRAPHS]
    save_graph(graphs[0], "g.json", graphs[1:])
    asked = ("--budget", f"{least_budget()}B", "--solver", "store-all", "--machine", "rtx3060")
    said = CliRunner().invoke(main, ["solve", "g.json", *asked]).stderr
    assert said.count("operation times were measured on cpu") == 1


def test_a_refusal_names_the_smallest_budget_of_all() -> None:
    least = least_budget()
    refused = call("solve", "g.json", "--budget", f"{least - 1}B", "--solver", "checkmate", status=3).stderr
    assert f"{least} B" in refused


@pytest.mark.parametrize(
    "words",
    [
        ("pareto", "--solver", "store-all", "--budgets", "100%"),
        ("bench", "--solvers", "store-all", "--budgets", "100%"),
        ("compare", "--solvers", "store-all", "--budget", "100%", "--bound-time", "0"),
        ("partition",),
        ("export", "moccasin", "-o", "m.json"),
    ],
    ids=lambda words: words[0],
)
def test_other_commands_say_that_they_take_the_whole_graph(words: tuple[str, ...]) -> None:
    command, *rest = words
    arguments = [rest[0], "g.json", *rest[1:]] if command == "export" else ["g.json", *rest]
    result = CliRunner().invoke(main, [command, *arguments])
    assert "g.json: its 3 splits are left out; plan solve chooses among them" in result.stderr


def test_each_split_has_half_of_the_time_that_is_left() -> None:
    limits: list[float | None] = []

    def solve(graph: Graph, search: Search) -> Found:
        limits.append(search.time_limit)
        raise InfeasibleError("nobody", 1, None, 2)

    for limit in (800.0, None):
        with pytest.raises(InfeasibleError):
            Splits(GRAPHS).solved(replace(SEARCH, time_limit=limit), solve)
    # What these take is less than seconds: half of all is left to each but the last.
    assert limits == [*(pytest.approx(each, abs=9) for each in (400, 400, 400, 800)), *[None] * 4]


def test_a_solver_without_a_bound_bounds_no_split() -> None:
    solution: Any = SimpleNamespace(lower_bound=None, interrupted=False, figures=SimpleNamespace(time=1.0))
    unused: Any = None
    found = Found(SEARCH, unused, solution, unused, budget=unused, peak=0, free=0)
    splits = Splits(GRAPHS)
    splits.solved(SEARCH, lambda _graph, _search: found)
    assert splits.bounds[0] == 0.0
