"""`plan pareto --report` writes a page whose commands solve the budgets that it shows."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan import save_graph
from memplan.cli.main import main
from memplan.graphs.generators import chain


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


def test_the_page_is_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(3), "g.json")
    result = CliRunner().invoke(main, ["pareto", "g.json", "--report", "page.txt"])
    assert result.exit_code == 2
    assert ".html" in result.stderr
