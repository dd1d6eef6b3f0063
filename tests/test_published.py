"""benchmarks/published.yaml and the table that is made of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.machines.presets import find_preset

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from published import FIGURES, load_rows  # noqa: E402
from published_table import Figure, half, judge, published_bytes, render  # noqa: E402

ROWS = load_rows()


def test_each_row_has_a_source_a_card_and_something_published() -> None:
    assert sum(row["expressible"] is True and row["sourced"] for row in ROWS) >= 40
    for row in ROWS:
        assert row["source"]["title"], row["id"]
        assert row["source"]["address"], row["id"]
        assert find_preset(row["card"]).gpu.memory, row["id"]
        assert row["memory"] or row["time"], row["id"]
        assert row["expressible"] is True or isinstance(row["expressible"], str)
        assert row["time"] is None or 1e-3 < row["time"] < 60, row["id"]
        size = published_bytes(row)
        assert size is None or 2**28 < size < 2**37, row["id"]


def test_each_half_has_rows_and_a_row_is_always_in_the_same() -> None:
    halves = [half(row) for row in ROWS]
    assert 0.4 < halves.count("fit") / len(halves) < 0.6
    assert half({"id": "gpt2-a100-fp32"}) == half({"id": "gpt2-a100-fp32", "time": 1.0})


def row(name: str, **given: Any) -> dict[str, Any]:
    return {**ROWS[0], "id": name, "memory": None, "time": None, "card": "t4", **given}


def estimated(*figures: float, error: str = "") -> dict[str, str]:
    return {**dict(zip(FIGURES, map(str, figures), strict=True)), "error": error}


def test_a_context_is_not_of_the_peak() -> None:
    assert published_bytes(row("a", memory={"peak": 10, "unit": "MiB", "context": 4})) == 6 * 2**20
    assert published_bytes(row("a", memory={"peak": 10, "unit": "GB"})) == 10**10
    assert published_bytes(row("a", memory={"fails": 12})) is None
    assert published_bytes(row("a")) is None


@pytest.mark.parametrize(("published", "inside"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False)])
def test_a_figure_is_inside_up_to_its_ends(published: float, inside: bool) -> None:
    figure = Figure(published, 1.0, 1.5, 2.0)
    assert figure.inside == inside
    assert figure.ratio == 1.5 / published


def test_the_page_counts_what_it_should() -> None:
    """Two rows of memory, 0.5 and 1.0 of published; recalled, failed and bounded rows are in no statistic."""
    peak = {"peak": 2, "unit": "GiB", "of": "allocated"}
    rows = [
        row("half", memory=peak),
        row("equal", memory=peak, time=2.0),
        row("recalled", memory=peak, sourced=False),
        row("failed", memory=peak),
        row("bound", memory={"fails": 20}, batch=10),
        row("unable", memory=peak, expressible="no such optimizer"),
    ]
    gib = 2**30
    results = {
        "half": estimated(gib, gib, 1.5 * gib, 1, 1, 1),
        "equal": estimated(gib, 2 * gib, 4 * gib, 1, 1, 1),
        "recalled": estimated(9 * gib, 9 * gib, 9 * gib, 1, 1, 1),
        "failed": {**dict.fromkeys(FIGURES, ""), "error": "took more than 1 s"},
        "bound": estimated(8 * gib, 8 * gib, 9 * gib, 1, 1, 1),
    }
    page = render(rows, results)
    assert "| all  | 2 | 0.75 | 0.50 | 1.00 | 50% | 50% | 2.75 |" in page
    assert "| all  | 1 | 0.50 | 0.50 | 0.50 | 0% | 0% | 1.00 |" in page
    assert "1 of 1 are right." in page  # 8 GiB fit a T4 at 10, 16 do not at 20
    assert "`failed`: took more than 1 s" in page
    assert "`unable`: no such optimizer" in page
    assert "| `half` |" in page
    assert "1.00 out" not in page
    assert judge(rows[0], results["half"]).memory == Figure(2 * gib, gib, gib, 1.5 * gib)
