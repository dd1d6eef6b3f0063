"""Signs of life of a command without a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic, sleep

import pytest
from memplan.cli.printing import heartbeat
from memplan.cli.printing.output import Output


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY_SECONDS", 0.01)


def lines(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    """Wait until standard error has a line, and return all."""
    shown, start = "", monotonic()
    while wanted not in shown and monotonic() - start < 60:
        sleep(0.01)
        shown += capsys.readouterr().err
    return shown


def test_a_command_without_a_terminal_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    best = list[str]()

    class State:
        def __str__(self) -> str:
            return "".join(best)

    with Output().logged("solving", State()) as (report, above):
        assert re.search(r"^plan: \d+ s: solving$", lines(capsys, "solving"), re.MULTILINE)
        report("second part")
        assert "second part" in lines(capsys, "second part")
        best.append("best 1 s")
        above("a row of the table")  # for terminals
        shown = lines(capsys, "best 1 s")
        assert "second part; best 1 s" in shown
        assert "row" not in shown
        report("third part")
        assert "third part; best 1 s" in lines(capsys, "third part")  # each line has the best
    capsys.readouterr()
    sleep(0.1)
    assert capsys.readouterr().err == ""


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("comparing") as progress:
        progress(3, 7, "rotor")
        assert "comparing: 3 of 7 (43%), rotor" in lines(capsys, "3 of 7 (43%), rotor")


@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_and_short_commands_say_nothing(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not quiet:
        monkeypatch.setattr(heartbeat, "EVERY_SECONDS", 1e6)
    with Output(quiet=quiet).status("solving"):
        sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_rate_is_ten_seconds() -> None:
    assert "EVERY_SECONDS = 10.0" in Path(heartbeat.__file__).read_text()
