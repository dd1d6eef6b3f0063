"""A comparison as a page: all that the terminal has, in one file, whatever names hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.comparison.tables import Remark, Table
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.report.comparison import Comparison, html, markdown
from memplan.report.origin import this_machine

ODD = 'a <b> & "c" | _d_ *e* `f`'
FOUND = Comparison(
    "two & three",
    ["plan bench <x>"],
    [Table("", ["rows", "solver"], [["7", ODD]], "hint")],
    ['<svg xmlns="http://www.w3.org/2000/svg" aria-label="a picture"></svg>'],
    [Table("g: 3 operations", ["75%", "solver"], [["1.00*", ODD]])],
    "legend",
    [Remark("found <more>", True), Remark("broke", False)],
)


class Words(HTMLParser):
    """Balanced elements, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_says_what_it_is_given_and_asks_nobody() -> None:
    text = html(FOUND)
    words = Words(text).words
    assert {"two & three", ODD, "plan bench <x>", "found <more>", "broke", "legend", "hint"} <= set(words)
    assert words.index(ODD) < words.index("7")  # names first
    assert '<li class="good">' in text
    assert '<li class="bad">' in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org/2000/svg)|@import|url\(", text)


def test_markdown_keeps_odd_names_in_their_cells() -> None:
    lines = markdown(FOUND).splitlines()
    (row,) = (line for line in lines if line.endswith("| 7 |"))
    assert re.sub(r"\\(.)", r"\1", row) == f"| {ODD} | 7 |"
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "![a picture](data:image/svg+xml;base64," in markdown(FOUND)
    assert "# two & three" in lines


def test_the_machine_is_told() -> None:
    assert re.search(r"\d+ cores", this_machine())


@pytest.mark.scripts
def test_bench_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(chain(6), "g.json")
    words = ["bench", "g.json", "--solvers", "rotor,store-all", "--budgets", "100%,80%", "-o", "r.csv"]
    for name in ("run.html", "run.md"):
        result = CliRunner().invoke(main, [*words, "--html", name])
        assert result.exit_code == 0, result.stderr
        assert f"written: {name}" in result.stderr
    page, text = Path("run.html").read_text(), Path("run.md").read_text()
    words_there = Words(page).words
    assert "2 solvers on 1 graph" in words_there
    assert "4 of 4 rows solved by this run" in words_there
    assert page.count("<svg") == 3
    assert "0 of 4 rows solved by this run; the others, maybe elsewhere, before" in text
    assert this_machine() in words_there
    refused = CliRunner().invoke(main, [*words, "--html", "run.txt"])
    assert refused.exit_code == 2
    assert "run.txt: the suffix must be .html or .md" in refused.stderr
