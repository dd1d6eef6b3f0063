"""Options of `MEMPLAN_*` variables and of `[tool.memplan]`: precedence, refusals; and what `-v` logs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import click
import memplan
import pytest
from click.testing import CliRunner, Result
from memplan.cli.help import long_name
from memplan.cli.main import COMMANDS, main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.solvers.problem import Problem

Plan = Callable[..., Result]
SOLVE = ("solve", "g.json", "--solver", "store-all", "--bound-time", "0")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a new folder below one that has g.json; env: variables."""
    folder = tmp_path / "project" / "below"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    save_graph(chain(5), "g.json")
    return lambda *words, **env: CliRunner(env=env).invoke(main, [*words])


def table(text: str, place: str = "..") -> None:
    Path(place, "pyproject.toml").write_text(f"[tool.memplan]\n{text}\n")


def options(name: str) -> list[click.Option]:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return [one for one in command.params if isinstance(one, click.Option)]


def settings(result: Result) -> tuple[str, int]:
    """Return solver and budget of what `plan solve --json` printed."""
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    return document["solver"]["name"], document["budget"]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_has_its_variable_and_the_help_says_so_once(name: str) -> None:
    shown = re.sub(r"\s+", " ", CliRunner().invoke(main, [name, "--help"]).stdout)
    for one in options(name):
        if (long := long_name(one)) not in ("help", "debug", "output"):
            assert one.envvar == "MEMPLAN_" + long.upper().replace("-", "_")
        else:
            assert one.envvar is None
    assert shown.count("MEMPLAN_") == 1
    example = re.search(r"MEMPLAN_(\S+) for --(\S+), ", shown)
    assert example is not None
    assert example[1] == example[2].upper().replace("-", "_")


def test_the_command_line_is_before_the_environment_before_the_table_before_the_default(plan: Plan) -> None:
    peak = settings(plan(*SOLVE, "--budget", "100%", "--json"))[1]
    solve = ("solve", "g.json", "--bound-time", "0", "--json")
    table('budget = "300%"\nsolver = "store-all"')
    assert settings(plan(*solve)) == ("store-all", 3 * peak)
    assert settings(plan(*solve, MEMPLAN_BUDGET="200%")) == ("store-all", 2 * peak)
    given = plan(*solve, "--budget", "100%", "--solver", "auto", MEMPLAN_BUDGET="200%")
    assert settings(given) == ("auto", peak)
    assert settings(plan(*solve, MEMPLAN_BUDGET="")) == ("store-all", 3 * peak)  # empty: not there


def test_a_table_of_one_command_is_before_that_of_all(plan: Plan) -> None:
    table('budget = "100%"\nsolver = "rotor"\n[tool.memplan.solve]\nsolver = "store-all"\nbound_time = 0')
    assert settings(plan("solve", "g.json", "--json"))[0] == "store-all"


def test_the_nearest_file_with_a_table_counts(plan: Plan) -> None:
    table('budget = "300%"')
    Path("pyproject.toml").write_text("[tool.other]\n")
    peak = settings(plan(*SOLVE, "--budget", "100%", "--json"))[1]
    assert settings(plan(*SOLVE, "--json"))[1] == 3 * peak
    table('budget = "200%"', ".")
    assert settings(plan(*SOLVE, "--json"))[1] == 2 * peak


@pytest.mark.scripts
def test_values_of_every_sort(plan: Plan) -> None:
    """Lists, numbers, true and false, a machine's file beside the table."""
    Path("../m.yaml").write_text("device: {capacity: 1GB}\n")
    rows = 'budgets = ["100%", "90%"]\ntime-limit = 9\nsolvers = ["store-all", "rotor"]\nbound-time = 0.0'
    table(f"{rows}\njson = true\nset = 'rotor.slots=100'\nmachine = 'm.yaml'")
    bench = plan("bench", "g.json")
    assert bench.exit_code == 0, bench.stderr
    done = json.loads(bench.stdout)["rows"]
    assert {(row["budget_text"], row["solver"]) for row in done} == {
        (budget, solver) for budget in ("100%", "90%") for solver in ("store-all", "rotor")
    }
    table("json = true\nmachine = 'm.yaml'\nsolver = 'store-all'\nbound-time = 0")
    assert settings(plan("solve", "g.json"))[1] == 10**9
    assert settings(plan("solve", "g.json", MEMPLAN_SET="", MEMPLAN_STATIC_LAYOUT="0"))[1] == 10**9


def test_betas_of_a_table_and_a_variable() -> None:
    """Two values: a list in the table, words in a variable."""
    command = main.get_command(click.Context(main), "profile")
    assert command is not None
    words = ["m.py", "--optimizer", "adamw"]
    context = command.make_context("profile", list(words), default_map={"betas": ["0.8", "0.9"]})
    assert context.params["betas"] == (0.8, 0.9)
    with CliRunner(env={"MEMPLAN_BETAS": "0.7 0.8"}).isolation():
        assert command.make_context("profile", list(words)).params["betas"] == (0.7, 0.8)


REFUSED = [
    ('budgte = "1GB"', "unknown key 'budgte' in [tool.memplan]: did you mean budget"),
    ("xyzzy = 1", "unknown key 'xyzzy' in [tool.memplan]: keys are options like time-limit"),
    (
        "[tool.memplan.sovle]\ngap = 0",
        "unknown key 'sovle' in [tool.memplan]: did you mean solve or solvers?",
    ),
    ("[tool.memplan.solve]\ngpu = 'rtx3060'", "unknown key 'gpu' in [tool.memplan]"),
    ("solve = 1", "solve in [tool.memplan] must be a table, [tool.memplan.solve]"),
    ("output = 's.json'", "output in [tool.memplan]: --output is for the command line alone"),
    ("debug = true", "debug in [tool.memplan]: --debug is for the command line alone"),
    ("start = 's.json'", "start in [tool.memplan]: files are named on the command line or by MEMPLAN_START"),
    (
        "time-limit = 'x'",
        "Invalid value for time-limit of [tool.memplan] in pyproject.toml: 'x' is not a time",
    ),
    ("budget = 70%", "pyproject.toml: cannot be read: "),
]


@pytest.mark.parametrize(("text", "line"), REFUSED)
def test_a_table_is_refused_in_one_line(text: str, line: str, plan: Plan) -> None:
    table(text)
    result = plan(*SOLVE, "--budget", "100%")
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert plan("solve", "--help").exit_code == 0


def test_no_table_has_code_executed(plan: Plan) -> None:
    """A folder of other people's schedules may have a pyproject.toml."""
    assert plan(*SOLVE, "--budget", "100%", "-o", "s.json").exit_code == 0
    Path("m.py").write_text("raise SystemExit('executed')")
    table("model = 'm.py'", ".")
    result = plan("run", "s.json")
    assert result.exit_code == 2
    assert "model in [tool.memplan]: files are named on the command line or by MEMPLAN_MODEL" in result.stderr


def test_a_table_that_is_none_and_a_file_that_cannot_be_read(plan: Plan) -> None:
    Path("pyproject.toml").write_text("[tool]\nmemplan = 3\n")
    assert "tool.memplan must be a table, [tool.memplan]" in plan(*SOLVE).stderr
    Path("pyproject.toml").write_bytes(b"\xff\xfe")
    refused = plan(*SOLVE)
    assert refused.exit_code == 2
    assert "pyproject.toml: cannot be read: " in refused.stderr


def test_a_bad_value_names_its_variable_and_no_other(plan: Plan) -> None:
    wrong = plan(*SOLVE, "--budget", "100%", MEMPLAN_TIME_LIMIT="soon")
    assert wrong.exit_code == 2
    assert "Invalid value for MEMPLAN_TIME_LIMIT: 'soon' is not a time" in wrong.stderr
    typed = plan(*SOLVE, "--budget", "100%", "--time-limit", "soon", MEMPLAN_TIME_LIMIT="5")
    assert "Invalid value for '--time-limit': 'soon' is not a time" in typed.stderr
    late = plan("solve", "g.json", "--budget", "100%", MEMPLAN_SOLVER="nobody")
    assert late.exit_code == 2
    assert "(options that are not of the command line: MEMPLAN_SOLVER)" in late.stderr


def test_a_variable_with_a_typo_is_noted(plan: Plan) -> None:
    result = plan(*SOLVE, "--budget", "100%", MEMPLAN_TIME_LIMT="5", MEMPLAN_GPU="rtx3060")
    assert result.exit_code == 0
    assert "MEMPLAN_TIME_LIMT is not known, it is ignored: did you mean MEMPLAN_TIME_LIMIT?" in result.stderr
    assert "MEMPLAN_GPU" not in result.stderr  # another command has it
    assert "TIME_LIMT" not in plan(*SOLVE, "--budget", "100%", "-q", MEMPLAN_TIME_LIMT="5").stderr


def test_one_v_logs_decisions_two_log_steps(plan: Plan) -> None:
    call = ("solve", "g.json", "--budget", "90%", "--solver", "rk-rotor", "--bound-time", "0")
    assert "solvers" not in plan(*call).stderr
    decisions = plan(*call, "-v").stderr
    assert re.search(r"^plan: \d+\.\d\d s solvers\.registry\.run: rk-rotor: solving ", decisions, re.M)
    assert "solvers.incumbent" not in decisions
    for words, env in (((*call, "-vv"), {}), (("-vv", *call), {}), (call, {"MEMPLAN_VERBOSE": "2"})):
        assert "solvers.incumbent: fastest" in plan(*words, **env).stderr
    logger = logging.getLogger("memplan")
    assert [type(each) for each in logger.handlers] == [logging.NullHandler]  # a command leaves no handler
    assert logger.level == logging.NOTSET


def test_json_is_alone_on_standard_output_with_v(plan: Plan) -> None:
    assert settings(plan(*SOLVE, "--budget", "100%", "--json", "-vv"))[0] == "store-all"


def test_the_package_is_silent_unless_asked(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    problem = Problem(chain(5), 10**12)
    memplan.solve("store-all", problem)
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, "memplan"):
        memplan.solve("store-all", problem)
    assert {record.name for record in caplog.records} == {"memplan.solvers.registry.run"}
    assert "store-all: solving" in caplog.text
