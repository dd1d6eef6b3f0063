"""The documentation names what there is, and its links lead somewhere. `make docs` runs its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from memplan.cli.main import COMMANDS
from memplan.solvers.registry import run as registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md"), *RESULTS.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FIGURE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+|(?<![\w.])\d{1,3}(?:,\d{3})+")
"""A figure that somebody measured: it has a fraction or thousands."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and the site make them."""
    heads = [line.lstrip("#").strip() for line in page.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_in_the_site() -> None:
    contents = (DOCS / "index.md").read_text().split()
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    assert pages - {"index"} == pages & set(contents)


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", (DOCS / "solvers.md").read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_solver_has_its_section() -> None:
    assert sorted(sections()) == sorted(entry.name for entry in registry.entries())


@pytest.mark.parametrize("entry", registry.entries(), ids=lambda entry: entry.name)
def test_a_solver_is_told_as_it_is(entry: registry.Entry) -> None:
    section = sections()[entry.name]
    assert f"| takes | {entry.accepts} |" in section
    assert f"| source | {entry.source} |" in section
    reported = dict(re.findall(r"`(\w+)=([^`]*)`", section.partition("| settings |")[2].partition("\n")[0]))
    settings = registry.settings_of(entry.name)
    assert reported == {
        key: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }


def test_the_path_through_the_design_is_short() -> None:
    path = (DOCS / "design.md").read_text().partition("## The path")[2].partition("## The table")[0]
    files = set(re.findall(r"`([\w/]+\.py)`", path))
    assert 20 < len(files) <= 35
    assert all((DOCS.parent / "memplan" / file).exists() for file in files)


def test_each_command_is_explained() -> None:
    text = (DOCS / "cli.md").read_text()
    assert all(f"| `plan {name}" in text for name in COMMANDS)


def test_figures_for_the_choice_of_a_technique_are_in_the_results() -> None:
    page = DOCS / "choose.md"
    cited = 0
    for section in re.split(r"^## ", page.read_text(), flags=re.M):
        found = {link.partition("#")[0] for link in LINK.findall(section)}
        links = {link for link in found if "results/" in link or link == "comparisons.md"}
        results = "".join((page.parent / link).read_text() for link in links)
        known = set(FIGURE.findall(results))
        figures = set(FIGURE.findall(LINK.sub("", section)))
        assert figures <= known, figures - known
        cited += len(figures)
    assert cited


def test_figures_that_several_pages_have_are_the_same_on_all() -> None:
    """Of checkpoints around each layer, and of estimates; the latter are the results page's."""
    readme, choose = (DOCS.parent / "README.md").read_text(), (DOCS / "choose.md").read_text()
    rows = [_slowdowns(text) for text in (readme, (DOCS / "comparisons.md").read_text(), choose)]
    assert len(rows[0]) == 4
    assert rows[0] == rows[1] == rows[2]
    results = (DOCS.parent / "benchmarks" / "results" / "published.md").read_text()
    row = r"^\| half judge \| (\d+) \|.*\| (\d+)% \| [\d.]+ \|$"
    (memory, _share), times = re.findall(row, results, re.M)
    for text in (readme, choose, (DOCS / "how-to" / "another-gpu.md").read_text()):
        assert re.findall(r"f (\d+) times that nothing was fitted to, (\d+) %", text) == [times]
        assert re.findall(r"f (\d+) peaks", text) == [memory]


def _slowdowns(page: str) -> dict[str, list[str]]:
    """Return both slowdowns of each row of the table of checkpoints around each layer, by the model."""
    rows = re.findall(r"^\| (GPT-2|BERT|ViT|T5)\b[^|]*((?:\|[^|\n]*)+)\|$", page, re.M)
    figures = [(model, re.findall(r"\+\d+\.\d %", cells)[:2]) for model, cells in rows]
    return dict(reversed([(model, pair) for model, pair in figures if len(pair) == 2]))  # the first table
