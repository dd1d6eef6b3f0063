"""The command line on graph files: what it prints, what it writes, and every error a user can cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import plug_ins
import pytest
from click.testing import CliRunner, Result
from command_line import solved, write_files
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline
from memplan.planner.schedule.file import load_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.registry import run as registry

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a folder with the files of command_line.py."""
    monkeypatch.chdir(tmp_path)
    write_files()
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_solve_check_and_show_agree(plan: Plan) -> None:
    found = solved()
    graph = load_graph("chain.json")
    plain = baseline(graph)
    file = load_schedule("s.json", graph)
    figures = simulate(graph, file.schedule, budget=file.budget).figures
    assert file.budget == found["budget"] == plain.peak * 60 // 100
    assert (found["time"], found["peak"]) == (figures.time, figures.peak)
    assert (found["baseline_time"], found["baseline_peak"]) == (plain.time, plain.peak)
    assert found["lower_bound"] <= found["time"]
    assert found["solver"]["name"] == file.solver["name"] == "auto"
    for key, value in file.predicted.items():
        assert found[key] == value
    checked = json.loads(plan("check", "s.json", "--graph", "chain.json", "--json").stdout)
    assert checked["valid"]
    assert all(checked[key] == found[key] for key in file.predicted)
    shown = json.loads(plan("show", "s.json", "--graph", "chain.json", "--json").stdout)
    assert max(shown["device_curve"]) == found["peak"]
    assert sum(row["time"] for row in shown["phases"]) == pytest.approx(found["time"])
    assert sum(row["recompute_seconds"] for row in shown["recomputed"]) == pytest.approx(
        found["time"] - plain.time
    )


def test_the_figures_for_people(plan: Plan) -> None:
    result = plan("solve", "chain.json", "--budget", "40MB")
    assert result.exit_code == 0
    assert "40MB = 40,000,000 B = 38.15 MiB" in result.stdout
    assert "gap" in result.stdout
    solved()
    shown = plan("show", "s.json", "--graph", "chain.json").stdout
    assert "operations recomputed" in shown
    assert "budget" in shown
    assert max(len(line) for line in shown.splitlines() if "│" in line) <= 80


def test_the_machine_gives_the_budget(plan: Plan) -> None:
    result = plan("solve", "chain.json", "--machine", "machine.yaml", "--json")
    assert json.loads(result.stdout)["budget"] == 40_000_000


def test_the_device_is_not_overfilled(plan: Plan) -> None:
    result = plan("solve", "chain.json", "--budget", "99%", "--machine", "machine.yaml", "--json")
    assert json.loads(result.stdout)["budget"] == 40_000_000
    assert "99% is above the device's capacity" in result.stderr
    assert (
        "above"
        not in plan("solve", "chain.json", "--budget", "99%", "--machine", "machine.yaml", "-q").stderr
    )


def test_an_infeasible_budget_as_json(plan: Plan) -> None:
    """A script that looks for the smallest budget reads it, and gets there."""
    for solver in ("auto", "rotor"):
        result = plan("solve", "chain.json", "--budget", "30%", "--json", "--solver", solver)
        assert result.exit_code == 3
        found = json.loads(result.stdout)
        assert found["status"] == "no-schedule"
        least = found["least_budget"]
        assert found["min_memory"] <= least
        assert plan("solve", "chain.json", "--budget", least, "--solver", solver).exit_code == 0
        assert (
            plan("solve", "chain.json", "--budget", found["min_memory"] - 1, "--solver", solver).exit_code
            == 3
        )


def test_solvers_are_listed(plan: Plan) -> None:
    listed = json.loads(plan("solvers", "--json").stdout)["solvers"]
    assert [row["name"] for row in listed][:5] == [
        "auto",
        "store-all",
        "layer-checkpoint",
        "torch-partitioner",
        "chen-sqrt",
    ]
    assert all(row["accepts"] and row["source"] for row in listed)
    for row in listed:
        assert row["settings"] == registry.settings_of(row["name"])
    assert "rotor" in plan("solvers").stdout


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no-command": ([], 2, "Usage"),
    "unknown-command": (["sovle"], 2, "No such command 'sovle'"),
    "unknown-option": (["solve", "chain.json", "--bugdet", "1GB"], 2, "--bugdet"),
    "no-such-graph": (["solve", "none.json", "--budget", "1GB"], 2, "none.json: no such file"),
    "graph-of-another-suffix": (["solve", "machine.toml", "--budget", "1GB"], 2, "toml: no such file"),
    "not-a-graph": (["solve", "machine.yaml", "--budget", "1GB"], 2, "format is None"),
    "unknown-unit": (["solve", "chain.json", "--budget", "12Gbit"], 2, "unknown unit 'Gbit'"),
    "no-unit-at-all": (["solve", "chain.json", "--budget", "much"], 2, "'much' is not a number of bytes"),
    "negative-budget": (["solve", "chain.json", "--budget", "-1GB"], 2, "-1GB"),
    "zero-budget": (["solve", "chain.json", "--budget", "0%"], 2, "must be above 0"),
    "nan-budget": (["solve", "chain.json", "--budget", "nan%"], 2, "is not a percentage"),
    "no-budget": (["solve", "chain.json"], 2, "give a --budget"),
    "unknown-solver": (["solve", "chain.json", "--budget", "60%", "--solver", "rotar"], 2, "rotor"),
    "unknown-setting": (
        ["solve", "chain.json", "--budget", "60%", "--set", "slot=3"],
        2,
        "no setting 'slot'",
    ),
    "setting-without-value": (["solve", "chain.json", "--budget", "60%", "--set", "slots"], 2, "key=value"),
    "setting-twice": (
        ["solve", "chain.json", "--budget", "60%", "--set", "slots=3", "--set", "slots=4"],
        2,
        "given twice",
    ),
    "setting-of-another-type": (
        ["solve", "chain.json", "--budget", "60%", "--set", "slots=many", "--solver", "rotor"],
        2,
        "must be a whole number",
    ),
    "time-limit-that-is-no-number": (
        ["solve", "chain.json", "--budget", "60%", "--time-limit", "nan"],
        2,
        "above 0 seconds and finite",
    ),
    "missing-solver": (
        ["solve", "chain.json", "--budget", "60%", "--solver", "checkmate", "--set", "backend=MOSEK"],
        4,
        "MOSEK is not installed",
    ),
    "folder-as-graph": (["solve", "folder.json", "--budget", "1GB"], 2, "cannot be read: it is a folder"),
    "half-a-file": (["solve", "half.json", "--budget", "1GB"], 2, "half.json: line 1: not JSON"),
    "time-limit-of-another-unit": (
        ["solve", "chain.json", "--budget", "60%", "--time-limit", "1week"],
        2,
        "'1week' is not a time, like 30 (seconds), 30s, 5m or 1h",
    ),
    "reserve-of-a-byte": (
        ["solve", "chain.json", "--budget", "60%", "--reserve", "1"],
        2,
        "reserve 1: that is 1 byte, which no device would notice: write 1GB, or 1B for bytes",
    ),
    "negative-time-limit": (
        ["solve", "chain.json", "--budget", "60%", "--time-limit", "-1"],
        2,
        "time-limit",
    ),
    "no-chain": (["solve", "dag.json", "--budget", "80%", "--solver", "rotor"], 2, "checkmate"),
    "bad-machine": (
        ["solve", "chain.json", "--machine", "slow.yaml"],
        2,
        "slow.yaml: field 'device.capacity'",
    ),
    "no-such-machine": (["solve", "chain.json", "--machine", "no.yaml"], 2, "no.yaml: no such file"),
    "output-suffix": (["solve", "chain.json", "--budget", "60%", "-o", "s.txt"], 2, "the suffix must be"),
    "output-in-no-folder": (
        ["solve", "chain.json", "--budget", "60%", "-o", "no/s.json"],
        2,
        "cannot be written",
    ),
    "output-is-a-folder": (
        ["solve", "chain.json", "--budget", "60%", "-o", "folder.json"],
        2,
        "it is a folder",
    ),
    "output-over-the-graph": (
        ["solve", "chain.json", "--budget", "60%", "-o", "./chain.json"],
        2,
        "-o would write over the input",
    ),
    "huge-percentage": (["solve", "chain.json", "--budget", "99999999999%"], 2, "is not a percentage"),
    "infeasible": (["solve", "chain.json", "--budget", "30%"], 3, "the smallest budget found by auto is"),
    "below-the-floor": (["solve", "chain.json", "--budget", "1KB"], 3, "is below the minimum memory"),
    "no-such-schedule": (["check", "no.json", "--graph", "chain.json"], 2, "no.json: no such file"),
    "estimate-without-gpu": (["profile", "m.py", "--estimate"], 2, "--estimate needs --gpu NAME"),
    "estimate-on-a-device": (
        ["profile", "m.py", "--estimate", "--gpu", "a100", "--device", "cpu"],
        2,
        "--gpu measures nothing: give one",
    ),
    "run-without-model": (["run", "s.json", "--graph", "chain.json"], 2, "--model"),
}


@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_is_one_line_with_its_exit_code(fault: str, plan: Plan) -> None:
    arguments, code, expected = ERRORS[fault]
    result = plan(*arguments)
    assert result.exit_code == code, result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    if arguments:
        lines = result.stderr.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("plan: error: ")
    assert result.stdout == ""


def test_a_refused_schedule_names_step_tensor_and_rule(plan: Plan) -> None:
    solved()
    document = json.loads(Path("s.json").read_text())
    document["steps"].insert(1, ["delete", "x1"])
    Path("bad.json").write_text(json.dumps(document))
    result = plan("check", "bad.json", "--graph", "chain.json")
    assert result.exit_code == 5
    assert "x1" in result.stderr
    assert "reads-present" in result.stderr or "delete-present" in result.stderr
    assert "step" in result.stderr
    as_json = json.loads(plan("check", "bad.json", "--graph", "chain.json", "--json").stdout)
    assert as_json["valid"] is False
    assert as_json["tensor"] == "x1"


def test_a_smaller_budget_is_refused(plan: Plan) -> None:
    solved()
    result = plan("check", "s.json", "--graph", "chain.json", "--budget", "10%")
    assert result.exit_code == 5
    assert "capacity" in result.stderr


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("time", 1.0),
        ("peak", 1),
        ("baseline_peak", 10**12),
        ("lower_bound", 1e6),
        ("lower_bound", float("nan")),
        ("time", "fast"),
        ("host_peak", True),
    ],
)
def test_wrong_figures_are_refused(plan: Plan, figure: str, value: object) -> None:
    solved()
    document = json.loads(Path("s.json").read_text())
    document["predicted"][figure] = value
    Path("boast.yaml").write_text(json.dumps(document).replace("NaN", ".nan"))
    result = plan("check", "boast.yaml", "--graph", "chain.json", "--json")
    assert result.exit_code == 5, result.stderr
    assert f"recorded {figure}" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    found = json.loads(result.stdout)
    assert (found["valid"], found["rule"]) == (False, None)
    assert plan("show", "boast.yaml", "--graph", "chain.json", "--json").exit_code == 0


def test_another_graph_is_a_mismatch(plan: Plan) -> None:
    solved()
    save_graph(chain(8, seed=1), "other.json")
    result = plan("check", "s.json", "--graph", "other.json")
    assert result.exit_code == 6
    assert "another graph" in result.stderr


def test_the_graph_files_own_digest_is_accepted(plan: Plan) -> None:
    import hashlib

    solved()
    document = json.loads(Path("s.json").read_text())
    document["graph"]["sha256"] = hashlib.sha256(Path("chain.json").read_bytes()).hexdigest()
    Path("byfile.json").write_text(json.dumps(document))
    assert plan("check", "byfile.json", "--graph", "chain.json").exit_code == 0


Installed = Callable[[str], None]


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Install the solver `theirs` of another package, given the body of its `solve(problem, options)`."""

    def installed(body: str) -> None:
        plug_ins.install(tmp_path, monkeypatch, f"def solve(problem, options):\n    {body}\n")

    return installed


THEIRS = ("solve", "chain.json", "--budget", "60%", "--solver", "theirs")


def test_the_end_of_some_file_is_no_interruption(plan: Plan, theirs: Installed) -> None:
    theirs("raise EOFError('Ran out of input')")
    result = plan(*THEIRS)
    assert result.exit_code == 1
    assert "an internal error: EOFError" in result.stderr


def test_an_unexpected_fault_is_an_internal_error(plan: Plan, theirs: Installed) -> None:
    theirs("raise RuntimeError('out of cheese')")
    result = plan(*THEIRS)
    assert result.exit_code == 1
    assert "an internal error: RuntimeError: out of cheese" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in plan(*THEIRS, "--debug").stderr
    assert "Traceback" in plan("--debug", *THEIRS).stderr


def test_flags_stand_before_the_command_too(plan: Plan) -> None:
    command = ("solve", "chain.json", "--budget", "60%", "--solver", "rotor")
    before, later = plan("--json", "-q", *command), plan(*command, "--json", "-q")
    assert json.loads(before.stdout)["time"] == json.loads(later.stdout)["time"]
    assert not before.stderr


def test_no_host_peak_without_transfers(plan: Plan) -> None:
    assert "host peak" not in plan("solve", "chain.json", "--budget", "60%", "--solver", "rotor").stdout


def test_files_of_any_name(plan: Plan) -> None:
    folder = Path("Ünï çode")
    folder.mkdir()
    graph = folder / "グラフ.yaml.gz"
    save_graph(chain(3), graph)
    for name in ("ś.json", "s.yml.gz", "[bold]s.yaml"):
        result = plan("solve", graph, "--budget", "90%", "-o", folder / name)
        assert result.exit_code == 0, result.stderr
        assert str(folder / name) in result.stdout
        assert plan("check", folder / name, "--graph", graph).exit_code == 0


def test_interrupted_without_a_schedule(plan: Plan, theirs: Installed) -> None:
    theirs("raise KeyboardInterrupt")
    result = plan(*THEIRS, "-o", "s.json")
    assert result.exit_code == 130
    assert result.stderr.strip() == "plan: interrupted"
    assert not Path("s.json").exists()


def test_an_interrupted_answer_is_written_and_says_so(plan: Plan, theirs: Installed) -> None:
    theirs(
        "from dataclasses import replace; from memplan.solvers.recomputation.checkpointing import rotor; "
        "return replace(rotor.solve(problem, replace(options, settings=None)), interrupted=True)"
    )
    result = plan(*THEIRS, "-o", "s.json", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["interrupted"] is True
    assert "best schedule so far" in result.stderr
    assert plan("check", "s.json", "--graph", "chain.json").exit_code == 0


def test_version_and_help(plan: Plan) -> None:
    assert "0.1.0" in plan("--version").stdout
    for name in ("profile", "solve", "check", "show", "report", "run", "solvers"):
        assert name in plan("--help").stdout
        assert plan(name, "--help").exit_code == 0
