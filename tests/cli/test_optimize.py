"""`plan optimize`: what it writes, when it measures, and that its schedule runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli import optimize
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain

Plan = Callable[..., Result]
MODEL = """import torch
from torch import nn

WIDTH = 64

def build():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers), (torch.randn(256, WIDTH),), lambda y: y.square().mean()
"""
OPTIMIZE = ("optimize", "m.py", "--budget", "80%", "--solver", "rk-rotor", "--bound-time", "0")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the model has been planned once."""
    folder = tmp_path_factory.mktemp("optimized")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("m.py").write_text(MODEL)
        result = CliRunner().invoke(main, [*OPTIMIZE, "--json"])
        assert result.exit_code == 0, result.stderr
        Path("said").write_text(result.stdout)
    return folder


@pytest.fixture
def plan(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a copy of that folder."""
    monkeypatch.chdir(tmp_path)
    for file in filter(Path.is_file, measured.iterdir()):  # not Python's folder of compiled files
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return lambda *words: CliRunner().invoke(main, [*words])


def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "make_graph", lambda *_, **_named: pytest.fail("measured"))


def test_graph_schedule_and_report_are_written(plan: Plan) -> None:
    document = json.loads(Path("said").read_text())
    assert document["measured"] is True
    names = {key: document[key] for key in ("graph", "schedule", "report")}
    assert names == {"graph": "m.graph.json", "schedule": "m.schedule.json", "report": "m.report.html"}
    assert document["peak"] <= document["budget"] < document["baseline_peak"]
    assert document["time"] > document["baseline_time"]
    assert "<html" in Path("m.report.html").read_text()
    assert plan("check", "m.schedule.json").exit_code == 0


def test_the_schedule_runs(plan: Plan) -> None:
    ended = plan("run", "m.schedule.json", "--model", "m.py", "--timing-repeats", "1")
    assert ended.exit_code == 0, ended.stderr
    assert "bitwise equal to eager" in ended.stdout


def test_what_was_measured_is_not_measured_again(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("m.graph.json").stat().st_mtime_ns
    no_measuring(monkeypatch)
    result = plan(*OPTIMIZE, "--budget", "90%")
    assert result.exit_code == 0, result.stderr
    assert "m.graph.json: measured before, and the model is the same" in result.stderr
    assert "m.schedule.json (the earlier one is m.schedule.old.json)" in result.stdout
    assert "plan run m.schedule.json --model m.py" in result.stdout
    assert "plan train" not in result.stdout  # no optimizer
    assert Path("m.graph.json").stat().st_mtime_ns == before


OUTDATED: dict[str, tuple[Callable[[], object], list[str], str]] = {
    "model": (
        lambda: Path("m.py").write_text(MODEL.replace("range(3)", "range(2)")),
        [],
        "the model has changed",
    ),
    "optimizer": (lambda: None, ["--optimizer", "sgd"], "measured with another optimizer"),
    "torch": (lambda: change(torch="1.0"), [], "measured with another PyTorch"),
    "threads": (lambda: change(threads=1000), [], "measured with another number of threads"),
    "estimate": (lambda: save_graph(chain(4), "m.graph.json"), [], "it was not measured"),
    "half a file": (lambda: Path("m.graph.json").write_text("{"), [], "line 1: not JSON"),
}


def change(**fields: object) -> None:
    document = json.loads(Path("m.graph.json").read_text())
    document["source"] |= fields
    Path("m.graph.json").write_text(json.dumps(document))


@pytest.mark.parametrize("case", OUTDATED)
def test_another_graph_is_made_anew(case: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, options, line = OUTDATED[case]
    spoil()
    before = Path("m.graph.json").read_text()
    monkeypatch.setattr(optimize, "make_graph", lambda *_, **_named: chain(6))
    result = plan(*OPTIMIZE, *options)
    assert result.exit_code == 0, result.stderr
    assert f"m.graph.json: {line}" in result.stderr
    assert result.stderr.count("measured anew") == 1
    assert Path("m.graph.old.json").read_text() == before


def test_remeasure_measures(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "make_graph", lambda *_, **_named: chain(6))
    result = plan(*OPTIMIZE, "--remeasure", "--json")
    assert json.loads(result.stdout)["measured"] is True
    assert "measured before" not in result.stderr
    assert load_graph("m.graph.json").name == chain(6).name


def test_a_budget_is_asked_for_before_the_model_is_read(plan: Plan) -> None:
    result = plan("optimize", "none.py")
    assert result.exit_code == 2
    assert "give a --budget, like 12GB or 60%, or a GPU to estimate for, --gpu NAME" in result.stderr


def test_a_refused_budget_keeps_the_graph(plan: Plan) -> None:
    result = plan(*OPTIMIZE, "--budget", "5%")
    assert result.exit_code == 3
    assert Path("m.graph.json").exists()
    assert not Path("m.schedule.old.json").exists()


def test_a_gpu_that_is_not_here(plan: Plan) -> None:
    """Its capacity is the budget; estimates are made each time."""
    result = plan("optimize", "m.py", "--gpu", "rtx3060", "--solver", "store-all", "--optimizer", "adamw")
    assert result.exit_code == 0, result.stderr
    assert load_graph("m.graph.json").source["estimate"]
    assert "budget       the device's capacity = 12,884,901,888 B" in result.stdout
    assert "plan run" not in result.stdout


def test_files_go_into_the_folder_of_o(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    no_measuring(monkeypatch)
    folder = Path("new", "plans")
    folder.mkdir(parents=True)
    (folder / "m.graph.json").write_bytes(Path("m.graph.json").read_bytes())
    result = plan(*OPTIMIZE, "-o", str(folder), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {key: document[key] for key in ("graph", "schedule", "report")} == {
        "graph": "new/plans/m.graph.json",
        "schedule": "new/plans/m.schedule.json",
        "report": "new/plans/m.report.html",
    }
    assert plan("check", "new/plans/m.schedule.json").exit_code == 0


def test_the_folder_of_o_is_made_before_the_work(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    no_measuring(monkeypatch)
    refused = plan(*OPTIMIZE, "-o", "m.py")
    assert refused.exit_code == 2
    assert "m.py: cannot be made: Not a directory" in refused.stderr
