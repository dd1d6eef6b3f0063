"""What a command prints and writes, where something stands in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files import documents
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.planner.schedule.file import load_schedule

Plan = Callable[..., Result]
PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()"]
BENCH = ("bench", "--solvers", "store-all", "--budgets", "100%", "-o", "rows.csv", "--bound-time", "0")
SOLVE = ("solve", "g.json", "--budget", "100%", "--solver", "store-all", "--bound-time", "0")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan` in a new folder that has g.json."""
    monkeypatch.chdir(tmp_path)
    save_graph(chain(5), "g.json")
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words])


def full_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of that folder is full."""
    write = documents.write_whole

    def full(data: bytes, path: Path) -> None:
        if folder in path.absolute().parents:
            raise OSError(28, "No space left on device")
        write(data, path)

    monkeypatch.setattr(documents, "write_whole", full)


def test_a_schedule_that_cannot_be_written_lies_beside(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("full").absolute()
    full.mkdir()
    full_below(full, monkeypatch)
    for words in ((), ("--json",)):
        result = plan(*SOLVE, "-o", full / "s.json", *words)
        assert result.exit_code == 2
        assert (
            f"plan: error: {full}/s.json: cannot be written: No space left on device; it is in"
            in result.stderr
        )
        extra = Path(result.stderr.split(" it is in ")[1].split(" instead")[0])
        assert len(load_schedule(extra, load_graph("g.json")).schedule)
        reported = json.loads(result.stdout)["schedule"] if words else result.stdout
        assert str(extra) in reported


def test_a_schedule_that_can_be_written_nowhere_has_its_figures(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_below(Path("/"), monkeypatch)
    result = plan(*SOLVE, "-o", "s.json")
    assert result.exit_code == 2
    assert "s.json: cannot be written: No space left on device\n" in result.stderr
    assert "peak" in result.stdout
    assert "schedule" not in result.stdout


def test_a_measured_machine_is_not_lost(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("full").absolute()
    full.mkdir()
    full_below(full, monkeypatch)
    result = plan("machine", "rtx3060", "-o", full / "m.yaml")
    assert result.exit_code == 2
    assert "it is in memplan-" in result.stderr
    assert plan(*SOLVE, "--machine", next(Path().glob("memplan-*.json"))).exit_code == 0


@pytest.mark.parametrize("length", [250, 253, 255])
def test_names_as_long_as_they_can_be(length: int, plan: Plan) -> None:
    name = "s" * (length - 5) + ".json"
    assert plan(*SOLVE, "-o", name).exit_code == 0
    assert load_schedule(name, load_graph("g.json")).budget


def test_a_name_that_is_too_long_is_refused_before_the_work(plan: Plan) -> None:
    result = plan(*SOLVE, "-o", "s" * 251 + ".json")
    assert result.exit_code == 2
    assert "File name too long" in result.stderr
    assert result.stdout == ""


def test_a_table_that_cannot_be_written_is_printed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise InputError("rows.csv: cannot be written: No space left on device")

    monkeypatch.setattr("memplan.cli.bench.command.append_row", full)
    result = plan(*BENCH, "g.json", "--json")
    assert result.exit_code == 2
    assert result.stderr.strip() == "plan: error: rows.csv: cannot be written: No space left on device"
    assert [row["outcome"] for row in json.loads(result.stdout)["rows"]] == ["ok"]


EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u202e\u2066\r\n evil"


def test_names_move_no_cursor_and_turn_no_text(plan: Plan) -> None:
    text = Path("g.json").read_text()
    graph = json.loads(text)
    graph["name"] = EVIL
    graph["operations"][1]["name"] = EVIL
    graph["operations"][1]["layer"] = EVIL
    Path("evil.json").write_text(json.dumps(graph))
    graph["operations"][0]["reads"] = [EVIL]
    Path("broken.json").write_text(json.dumps(graph))
    calls = [
        ("solve", "evil.json", "--budget", "100%", "-o", "s.json", "--bound-time", "0"),
        ("check", "s.json", "--graph", "evil.json"),
        ("show", "s.json", "--graph", "evil.json"),
        ("bench", "evil.json", "--solvers", "store-all", "--budgets", "100%"),
        ("solve", "broken.json", "--budget", "60%"),
        ("solve", EVIL.replace("\n", "") + ".json", "--budget", "60%"),
        ("check", "s.json", "--graph", "evil.json", "--budget", "1"),
        ("solve", "evil.json", "--budget", EVIL),
        ("solve", "evil.json", "--solver", EVIL, "--budget", "60%"),
        ("machine", EVIL),
        (EVIL,),
    ]
    for words in calls:
        result = plan(*words)
        assert result.exit_code in (0, 2, 5), result.stderr
        said = (result.stdout + result.stderr).replace("\n", "")
        assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066" for c in said), words


def test_a_line_has_a_length_that_can_be_read(plan: Plan) -> None:
    long = "x" * 100_000
    Path("long.json").write_text(f'{{"{long}": 1, "format": "plan-graph/1"}}')
    for words in (("solve", "long.json"), ("solve", "g.json", "--solver", long), ("machine", long), (long,)):
        result = plan(*words)
        assert result.exit_code == 2
        assert len(result.stderr) < 2000
        assert len(result.stderr.splitlines()) == 1


def test_a_graph_with_a_long_name_is_compared_again(plan: Plan) -> None:
    graph = json.loads(Path("g.json").read_text())
    graph["name"] = "n" * 200_000
    Path("long.json").write_text(json.dumps(graph))
    for note in ("", "1 of 1 rows are in rows.csv already"):
        result = plan(*BENCH, "long.json")
        assert result.exit_code == 0, result.stderr
        assert note in result.stderr


@pytest.mark.parametrize("columns", ["0", "1", "-3", "x", "19"])
def test_terminals_without_width(columns: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert plan(*SOLVE, "-o", "s.json").exit_code == 0
    assert plan("show", "s.json", "--graph", "g.json").exit_code == 0


@pytest.mark.sampled(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("words", [("--help",), ("solve", "--help"), ("--version",), ("solvers", "--json")])
def test_a_full_disk_behind_the_help(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PLAN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("plan: error: ")
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="closes a POSIX pipe")
@pytest.mark.parametrize("words", [("--help",), ("machine", "--list")])
def test_a_reader_that_has_gone(words: tuple[str, ...]) -> None:
    process = subprocess.Popen([*PLAN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait() == 0
