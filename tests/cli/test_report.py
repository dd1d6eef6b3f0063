"""`plan report`: the page is written, what is asked beside it is in it, faults are one line."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    save_graph(chain(7), "other.json")

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    ended = call(
        "solve", "g.json", "--budget", "75%", "--solver", "rotor", "--bound-time", "0", "-o", "s.json"
    )
    assert ended.exit_code == 0
    return call


def shown(path: str = "r.html") -> dict[str, Any]:
    packed = Path(path).read_text().split('id="data">')[1].split("<")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_page_has_the_commands_to_go_on_with(plan: Plan) -> None:
    assert plan("report", "s.json", "--bound-time", "0", "-o", "r.html").exit_code == 0
    assert shown()["next"] == [["more memory", "plan solve g.json --budget 80% -o g-80.schedule.json"]]
    assert plan("report", "g.json", "-o", "r.html").exit_code == 0
    assert shown()["next"] == []  # a baseline: there is no schedule file to run


@pytest.mark.scripts
def test_a_page_with_all_that_is_known(plan: Plan) -> None:
    assert (
        plan(
            "bench", "g.json", "--solvers", "rotor,chen-sqrt", "--budgets", "80%,90%", "-o", "b.csv"
        ).exit_code
        == 0
    )
    measured = {"time": 2.0, "peak": 11, "host_peak": 0, "disk_peak": 0, "reserved": None}
    Path("run.json").write_text(json.dumps({"predicted": measured, "measured": measured, "eager": None}))
    extras = ("--bench", "b.csv", "--run", "run.json")
    ended = plan("report", "s.json", "--graph", "g.json", "-o", "r.html", *extras, "--json")
    assert ended.exit_code == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["report"] == "r.html"
    assert said["bytes"] == Path("r.html").stat().st_size
    document = shown()
    assert document["figures"]["peak"] == said["peak"]
    assert {row["solver"] for row in document["bench"]} == {"rotor", "chen-sqrt"}
    assert set(document["run"]) == {"predicted", "measured"}
    html = Path("r.html").read_text()
    assert "http://" not in html.split("<script>")[0]
    assert 'src="' not in html.split("<script>")[0]


def test_a_schedule_that_does_not_fit_has_no_page(plan: Plan) -> None:
    document = json.loads(Path("s.json").read_text())
    document["budget"] //= 10
    Path("s.json").write_text(json.dumps(document))
    ended = plan("report", "s.json", "--graph", "g.json", "-o", "r.html")
    assert ended.exit_code == 5
    assert ended.stderr.count("\n") == 1
    assert "capacity" in ended.stderr
    assert not Path("r.html").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-o", "r.pdf"), "r.pdf: the suffix must be .html"),
        (("-o", "no/r.html"), "no/r.html: cannot be written: No such file or directory"),
        (("-o", "r.html", "--bench", "none.csv"), "none.csv: no such file"),
        (("-o", "r.html", "--bench", "b.csv"), "b.csv: has no schedule of chain-6"),
        (("-o", "r.html", "--run", "s.json"), "s.json: is not what plan run --json prints"),
    ],
)
def test_faults_are_one_line(plan: Plan, words: tuple[str, ...], says: str) -> None:
    plan("bench", "other.json", "--solvers", "rotor", "--budgets", "90%", "-o", "b.csv")
    ended = plan("report", "s.json", "--graph", "g.json", *words)
    assert ended.exit_code == 2, ended.stderr
    assert says in ended.stderr
    assert not Path("r.html").exists()


def test_of_a_graph_the_page_is_of_its_baseline(plan: Plan) -> None:
    """As of a snapshot that was imported, of which people want to know whose the peak is."""
    ended = plan("report", "g.json", "-o", "r.html", "--json")
    assert ended.exit_code == 0, ended.stderr
    assert "g.json is a graph: its baseline is shown; `plan solve` makes a schedule of it" in ended.stderr
    assert json.loads(ended.stdout)["peak"] == shown()["figures"]["peak"] == baseline(chain(6)).peak
    ended = plan("report", "g.json", "--graph", "g.json")
    assert ended.exit_code == 2
    assert "it is a graph" in ended.stderr
