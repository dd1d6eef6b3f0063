"""The page of `plan size`: one file, all that the terminal says, whatever names hold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from memplan.comparison.tables import Table
from memplan.report.size import Bar, Filter, Section, page
from memplan.sizing.estimate_range import Span

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ODD = "</svg><script>alert(1)</script> & <b>"
SECTIONS = [
    Section(
        Table("RTX 3060", ["batch", "", "words"], [["8", "2", ODD]], "a hint"),
        (Bar("8", 10.0, True, Span(2**30, 1.5 * 2**30, 2**31)), Bar("16", 5.0, False, None)),
        "It fits.",
    ),
    Section(Table("By module", ["bytes", "module"], [["3", "h.*"]])),
]


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(1061.4, "1,061"), (2000.0, "2,000"), (999.6, "1,000"), (12.34, "12.3"), (0.0213, "0.0213")],
)
def test_rates_of_bars_have_no_exponents(rate: float, shown: str) -> None:
    section = Section(Table("t", ["batch"], [["8"]]), (Bar("8", rate, True, None),), "")
    assert f">{shown}</text>" in page("t", [section], [])


class Words(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_it_says_what_it_is_given_and_asks_nobody() -> None:
    text = page(f"gpt2 {ODD}", SECTIONS, ["plan size <x>"])
    found = Words(text)
    assert {"It fits.", "a hint", "By module", "h.*", ODD, "plan size <x>", "1.50 GiB"} <= set(found.words)
    assert "script" not in {tag for tag, _attributes in found.tags}
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)


def test_bars_are_as_long_as_batches_are_fast_and_the_best_is_marked() -> None:
    bars = [attributes for tag, attributes in Words(page("t", SECTIONS, [])).tags if tag == "rect"]
    assert [bar["class"] for bar in bars] == ["best", "rate"]
    first, second = (float(bar["width"] or 0) for bar in bars)
    assert first == pytest.approx(2 * second)
    (line,) = [attributes for tag, attributes in Words(page("t", SECTIONS, [])).tags if tag == "line"]
    low, high = float(line["x1"] or 0), float(line["x2"] or 0)
    assert 64 < low < high == 306


GPUS = Section(
    Table(
        "All GPUs",
        ["time", "samples/s", "gpu"],
        [["1.20 ms", "1,061", "rtx3060"], ["800 µs", "≤ 2,000", "a100"], ["-", "-", "t4: does not fit"]],
    ),
    filters=(
        Filter("card", "gpu"),
        Filter("most", "time", most=True),
        Filter("least", "samples/s", most=False),
    ),
)


def dumped(probe: str, folder: Path) -> str:
    """Return the page of several GPUs as a browser has it after a script."""
    path = folder / "size.html"
    path.write_text(page("gpt2", [GPUS], []).replace("</body>", f"<script>{probe}</script></body>"))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'p'}"]
    ran = subprocess.run([*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120)
    return ran.stdout


def test_only_tables_with_filters_have_a_script() -> None:
    assert "<form" not in page("t", SECTIONS, [])
    text = page("t", [GPUS], [])
    assert text.count("<script>") == 1
    assert text.count("<input") == 3
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.scripts
@pytest.mark.parametrize(
    ("probe", "rows"),
    [
        ("set('gpu', 'RTX, t4')", ["rtx3060", "t4: does not fit"]),
        ("set('time', '0.001')", ["a100"]),
        ("set('samples/s', '1500')", ["a100"]),
        ("set('gpu', 'h100')", []),
        ("table.rows[0].cells[1].click()", ["a100", "rtx3060", "t4: does not fit"]),
        ("table.rows[0].cells[0].click()", ["a100", "rtx3060", "t4: does not fit"]),
        ("for (const k of [1, 2]) table.rows[0].cells[2].click()", ["a100", "rtx3060", "t4: does not fit"]),
    ],
)
def test_rows_are_chosen_and_sorted(probe: str, rows: list[str], tmp_path: Path) -> None:
    helpers = """
    const form = document.querySelector("form.filter"), table = document.querySelector("table");
    const set = (name, value) => {
      form.elements[name].value = value;
      form.dispatchEvent(new Event("input"));
    };
    """
    found = "[...table.rows].slice(1).filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
    text = dumped(f"{helpers}; {probe}; document.title = JSON.stringify({found})", tmp_path)
    title = re.search(r"<title>(.*)</title>", text)
    assert title is not None
    assert json.loads(unescape(title[1])) == rows


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [500, 1280])
def test_a_browser_has_no_complaint_and_nothing_runs_out_of_the_page(tmp_path: Path, width: int) -> None:
    probe = "<script>document.title = document.documentElement.scrollWidth <= innerWidth</script>"
    path = tmp_path / "size.html"
    path.write_text(page("gpt2", SECTIONS, ["plan size"]).replace("</body>", f"{probe}</body>"))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},800", "--dump-dom"]
    ran = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>true</title>" in ran.stdout
    assert "CONSOLE" not in ran.stderr
