"""`plan pareto --report` writes a page whose commands solve the budgets that it shows."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from memplan import save_graph
from memplan.cli.main import main
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline, whole_document
from memplan.planner.schedule.file import load_schedule
from memplan.planner.simulator.simulate import simulate
from split_graphs import split_graphs


@pytest.mark.scripts
def test_the_commands_of_the_page_solve_its_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    options = ["--solver", "rotor", "--budgets", "60%,80%", "--bound-time", "0", "--report", "page.html"]
    result = CliRunner().invoke(main, ["pareto", "g.json", *options])
    assert result.exit_code == 0, result.stderr
    assert "page.html: 2 budgets" in result.stderr
    commands = [unescape(text) for text in re.findall("<code>(.*?)</code>", Path("page.html").read_text())]
    assert len(commands) == 4
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.stderr


@pytest.mark.scripts
def test_of_a_file_with_splits_the_commands_solve_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, *splits = split_graphs(Random(3))
    source = whole_document(whole)
    save_graph(whole, "g.json", [replace(split, source=source) for split in splits])
    options = ["--solver", "search", "--budgets", "100%", "--bound-time", "0", "--report", "page.html"]
    assert CliRunner().invoke(main, ["pareto", "g.json", *options]).exit_code == 0
    commands = [unescape(text) for text in re.findall("<code>(.*?)</code>", Path("page.html").read_text())]
    solving = [shlex.split(command)[1:] for command in commands if command.startswith("plan solve")]
    assert len(solving) == 1
    for words in solving:
        assert CliRunner().invoke(main, words).exit_code == 0
        schedule = load_schedule(words[words.index("-o") + 1], whole).schedule
        assert simulate(whole, schedule, budget=baseline(whole).peak).figures.time > 0  # of whole operations


def test_the_page_is_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(3), "g.json")
    result = CliRunner().invoke(main, ["pareto", "g.json", "--report", "page.txt"])
    assert result.exit_code == 2
    assert ".html" in result.stderr
