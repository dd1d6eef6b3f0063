"""A command that took more than twice its time limit says in one line what took the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli import phases
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_what_counts_is_named_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(phases, "monotonic", clock)
    of = phases.Phases()
    for name, seconds in (("reading", 2.0), ("solving", 14.0), ("writing", 0.1)):
        with of.of(name):
            clock.now += seconds
    of.divide("solving", 6.0, "validating")
    assert of.line(None) is None
    assert of.line(9.0) is None, "16.1 s are less than twice that"
    line = of.line(5.0)
    assert line == (
        "took 16.1 s in all, the time limit of 5.00 s is for the search alone: validating 8.00 s, solving "
        "6.00 s, reading 2.00 s"
    )


@pytest.mark.parametrize("budget", ["100%", "1%"])
def test_solve_tells_it_with_a_schedule_and_without(
    budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    words = ["solve", "g.json", "--budget", budget, "--solver", "store-all", "--time-limit"]
    late = CliRunner().invoke(main, [*words, "0.0001"])
    (line,) = (line for line in late.stderr.splitlines() if "in all" in line)
    assert line.startswith("plan: took ")
    assert "the time limit of 100 µs is for the search alone: " in line
    assert "in all" not in CliRunner().invoke(main, [*words, "100"]).stderr
