"""Whatever a file argument of a command is, a pipe, a device, a link to nowhere: one line, at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main

if sys.platform == "win32":
    pytest.skip("named pipes, devices and links of POSIX", allow_module_level=True)

SECONDS = 60
"""Reading a pipe that nobody writes takes for ever."""


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.symlink_to("nothing")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


ODD: dict[Callable[[Path], None], str] = {
    os.mkfifo: "it is a named pipe",
    zeros: "it is a device",
    Path.mkdir: "",
    nowhere: "",
    circle: "",
    huge: "",
}
STORE_ALL = ["--solver", "store-all", "-o"]
SOLVE = ["solve", "GRAPH", "--budget", "90%"]
STORE = ["bench", "GRAPH", "--budgets", "90%", "--solvers", "store-all", "--bound-time", "0", "-o", "own.csv"]
COMMANDS: dict[str, list[str]] = {
    "a graph": ["solve", "ODD.yaml", "--budget", "90%"],
    "a packed graph": ["solve", "ODD.json.gz", "--budget", "90%"],
    "a machine": [*SOLVE, "--machine", "ODD.yaml"],
    "a schedule": ["check", "ODD.json", "--graph", "GRAPH"],
    "a page's table": ["report", "SCHEDULE", "--graph", "GRAPH", "-o", "r.html", "--bench", "ODD.csv"],
    "a page's run": ["report", "SCHEDULE", "--graph", "GRAPH", "-o", "r.html", "--run", "ODD.json"],
    "a model": ["profile", "ODD.py"],
    "a model to size": ["size", "ODD.py", "--gpu", "rtx3060"],
    "a configuration": ["size", "ODD.json", "--gpu", "rtx3060"],
    "rows so far": [*STORE[:-1], "ODD.csv"],
    "other rows": [*STORE, "--compare", "ODD.csv"],
    "published rows": [*STORE, "--published", "ODD.yaml"],
    "moccasin": ["import", "moccasin", "ODD.json"],
    "checkmate": ["import", "checkmate", "ODD.pkl"],
    "snapshot": ["import", "snapshot", "ODD.pickle"],
    "rkgb": ["import", "rkgb", "ODD.pkl"],
    "onnx": ["import", "onnx", "ODD.onnx", "--gpu", "rtx3060"],
    "fx": ["import", "fx", "ODD.pt2", "--gpu", "rtx3060"],
}


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    def late(*_: object) -> None:
        pytest.fail("it hangs")  # an OSError, as TimeoutError is, may be expected

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph and its schedule."""
    folder = tmp_path_factory.mktemp("sound")
    for arguments in (
        ["instances", "unet", "-o", str(folder / "graph.yaml")],
        ["solve", str(folder / "graph.yaml"), "--budget", "100%", *STORE_ALL, str(folder / "schedule.json")],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
    return folder


@pytest.mark.sampled(31)
@pytest.mark.parametrize(
    ("command", "make"),
    [
        (command, make)
        for command in COMMANDS
        for make in ODD
        if make is os.mkfifo or command in ("a graph", "a model", "rows so far", "fx", "onnx")
    ],
)
def test_one_line(
    command: str,
    make: Callable[[Path], None],
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        word.replace("GRAPH", str(sound / "graph.yaml")).replace("SCHEDULE", str(sound / "schedule.json"))
        for word in COMMANDS[command]
    ]
    odd = next(word for word in arguments if word.startswith("ODD"))
    make(Path(odd))
    result = CliRunner().invoke(main, arguments)
    if command == "rows so far" and make is nowhere:  # a table that is not there yet
        return
    assert result.exit_code in (1, 2), result.output
    lines = result.stderr.strip().splitlines()
    errors = [line for line in lines if "rror" in line]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert ODD[make] in errors[0] or "no regular file" in errors[0]
    assert odd in errors[0]
