"""The page with a slider over budgets: each budget has its schedule and commands, and one is shown."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline
from memplan.planner.report import Report
from memplan.report.budgets import Stop, budgets_page
from memplan.report.subject import Subject
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MOVE = """<script>
slider.value = "0"; slider.dispatchEvent(new Event("input"));
document.title = [...stops].map((stop) => stop.hidden ? "no" : "yes").join() + " "
  + [...dots].map((dot) => dot.getAttribute("r")).join() + " " + slider.getAttribute("aria-valuetext");
</script>"""


def pages(name: str = "a<b") -> str:
    graph = chain(6)
    whole = baseline(graph)
    stops = list[Stop]()
    for percent in (60, 80):
        budget = whole.peak * percent // 100
        found = registry.solve("rotor", Problem(graph, budget), bound_seconds=0.0)
        report = Report(found.figures, whole, 1.0)
        subject = Subject(graph=graph, schedule=found.schedule, report=report, budget=budget, machine=None)
        stops.append(Stop(budget, subject, 1.0, [("solve", f"plan solve 'a<b' --budget {budget}")]))
    return budgets_page(name, stops)


def test_each_budget_has_its_schedule_and_commands() -> None:
    page = pages()
    assert len(re.findall('<section class="stop"', page)) == page.count('<svg xmlns="http://www.w3') == 2
    assert page.count("plan solve &#x27;a&lt;b&#x27; --budget") == 2
    assert 'min="0" max="1"' in page
    assert "a<b" not in page
    assert "src=" not in page
    assert 'href="http' not in page


@pytest.mark.scripts
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_slider_chooses_what_is_shown(tmp_path: Path) -> None:
    """Sections that are hidden, the larger dot, and the words that a screen reader says."""
    file = tmp_path / "page.html"
    file.write_text(pages().replace("</body>", f"{MOVE}</body>"))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search("<title>(.*?)</title>", shown)
    assert title is not None
    assert re.fullmatch(r"yes,no 7,3 [\d.]+ \w+", title[1]), title[1]
