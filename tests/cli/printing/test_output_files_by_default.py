"""Files that commands write without -o, what is there before, and standard input and output as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.schedule.file import load_schedule

Plan = Callable[..., Result]
SOLVE = ("--budget", "100%", "--solver", "store-all", "--bound-time", "0")
MODEL = """import torch

def build():
    return torch.nn.Linear(2, 2), (torch.ones(1, 2),), torch.sum

small = build
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in an empty folder; graphs and models are in the folder `elsewhere` beside it."""
    (tmp_path / "elsewhere").mkdir()
    save_graph(chain(4), tmp_path / "elsewhere" / "chain.json")
    (tmp_path / "elsewhere" / "m.py").write_text(MODEL)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *words, given=None: CliRunner().invoke(main, [*words], input=given)


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


def without_seconds(text: str) -> object:
    document = json.loads(text)
    del document["solver"]["seconds"]
    return document


def test_a_schedule_is_written_in_the_working_folder(plan: Plan) -> None:
    result = plan("solve", "../elsewhere/chain.json", *SOLVE)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1].split() == ["schedule", "chain.schedule.json"]
    assert files() == {"chain.schedule.json"}
    named = plan("solve", "../elsewhere/chain.json", *SOLVE, "-o", "s.json", "--json")
    assert json.loads(named.stdout)["schedule"] == "s.json"
    saved = Path("chain.schedule.json"), Path("s.json")
    assert len({str(without_seconds(path.read_text())) for path in saved}) == 1


def test_the_file_that_was_there_is_kept_once(plan: Plan) -> None:
    call = ("solve", "../elsewhere/chain.json", *SOLVE)
    for budget in ("150%", "140%", "130%"):
        result = plan(*call, "--budget", budget)
    assert "chain.schedule.json (the earlier one is chain.schedule.old.json)" in result.stdout
    assert files() == {"chain.schedule.json", "chain.schedule.old.json"}
    graph = load_graph("../elsewhere/chain.json")
    budgets = [load_schedule(name, graph).budget or 0 for name in sorted(files())]
    assert budgets == sorted(budgets)
    assert len(set(budgets)) == 2
    plan(*call, "-o", "chain.schedule.json")  # the user has named it: it is replaced
    assert len(files()) == 2


def test_a_refused_budget_leaves_the_file_that_was_there(plan: Plan) -> None:
    call = ("solve", "../elsewhere/chain.json", "--solver", "store-all", "--bound-time", "0", "--budget")
    assert plan(*call, "100%").exit_code == 0
    before = Path("chain.schedule.json").read_text()
    assert plan(*call, "99%").exit_code == 3
    assert files() == {"chain.schedule.json"}
    assert Path("chain.schedule.json").read_text() == before


@pytest.mark.parametrize(("entry", "name"), [("", "m"), (":build", "m-build"), (":small", "m-small")])
def test_the_whole_way_without_a_name(entry: str, name: str, plan: Plan) -> None:
    profiled = plan("profile", f"../elsewhere/m.py{entry}", "--gpu", "rtx3060")
    assert profiled.exit_code == 0, profiled.stderr
    assert plan("solve", f"{name}.graph.json", *SOLVE).exit_code == 0
    shown = plan("report", f"{name}.schedule.json")
    assert shown.stdout.startswith(f"{name}.report.html: ")
    assert files() == {f"{name}.graph.json", f"{name}.schedule.json", f"{name}.report.html"}


def test_what_others_wrote_and_shards_have_names_too(plan: Plan) -> None:
    exported = plan("export", "moccasin", "../elsewhere/chain.json", "--lossy", "-o", "other.json")
    assert exported.exit_code == 0, exported.stderr
    assert plan("import", "moccasin", "other.json").exit_code == 0
    machine = yaml.safe_load(plan("machine", "a100", "-o", "-").stdout)
    graph = json.loads(Path("../elsewhere/chain.json").read_text())
    graph["machine"] = {key: machine[key] for key in ("device", "links", "updates")}
    Path("linked.json").write_text(json.dumps(graph))
    sharded = plan("shard", "linked.json", "--ranks", "2", "--optimizer", "adamw")
    assert sharded.exit_code == 0, sharded.stderr
    assert {"other.graph.json", "linked.sharded.json"} < files()


def test_a_schedule_on_standard_output(plan: Plan) -> None:
    call = ("solve", "../elsewhere/chain.json", *SOLVE)
    plan(*call, "-o", "s.json")
    for place in ("-", "/dev/stdout"):
        printed = plan(*call, "-o", place)
        assert printed.exit_code == 0, printed.stderr
        assert without_seconds(printed.stdout) == without_seconds(Path("s.json").read_text())
        assert "baseline" in printed.stderr  # the figures
    assert plan(*call, "-o", "-", "-q").stderr == ""
    assert files() == {"s.json"}
    both = plan(*call, "-o", "-", "--json")
    assert both.exit_code == 2
    assert "--json and -o - both print on standard output: give one" in both.stderr


def test_names_that_are_not_ascii_are_escaped_on_standard_output(plan: Plan) -> None:
    graph = json.loads(Path("../elsewhere/chain.json").read_text())
    graph["name"] = "größe ✓"
    Path("g.json").write_text(json.dumps(graph), encoding="utf-8")
    printed = plan("solve", "g.json", *SOLVE, "-o", "-")
    assert printed.stdout.isascii()
    assert json.loads(printed.stdout)["graph"]["name"] == "größe ✓"


@pytest.mark.parametrize("place", ["-", "/dev/stdin"])
def test_a_pipe(place: str, plan: Plan) -> None:
    """plan instances … -o - | plan solve - -o - | plan check - --graph g.json"""
    graph = plan("instances", "unet", "-o", "-").stdout
    schedule = plan("solve", place, *SOLVE, "-o", "-", given=graph).stdout
    Path("g.json").write_text(graph)
    checked = plan("check", place, "--graph", "g.json", given=schedule)
    assert checked.exit_code == 0, checked.stderr
    assert "keep every rule" in checked.stdout
    assert plan("solve", place, *SOLVE, given=yaml.safe_dump(json.loads(graph))).exit_code == 0
    assert files() == {"g.json", "stdin.schedule.json"}
    wrong = plan("solve", place, *SOLVE, given="no graph")
    assert wrong.exit_code == 2
    assert "stdin.yaml" in wrong.stderr


def test_a_default_that_cannot_be_written_is_refused_before_the_work(plan: Plan) -> None:
    Path("chain.schedule.json").mkdir()
    result = plan("solve", "../elsewhere/chain.json", *SOLVE)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "it is a folder: give -o FILE, or -o - for standard output" in result.stderr
    assert plan("solve", "../elsewhere/chain.json", *SOLVE, "-o", "-").exit_code == 0


def test_the_default_never_replaces_what_it_is_made_of(plan: Plan) -> None:
    Path("g.schedule.json").write_text(Path("../elsewhere/chain.json").read_text())
    result = plan("solve", "g.schedule.json", *SOLVE)
    assert result.exit_code == 2
    assert "g.schedule.json: -o would write over the input of that name" in result.stderr


def test_answers_of_pareto_that_are_not_saved_are_named(plan: Plan) -> None:
    call = (
        "pareto",
        "../elsewhere/chain.json",
        "--budgets",
        "100%",
        "--solver",
        "store-all",
        "--bound-time",
        "0",
    )
    assert "answers are not saved: give -o curve.csv" in plan(*call).stderr
    assert "not saved" not in plan(*call, "-o", "c.csv").stderr
