"""Pages on a phone and on a desk, in light and in dark: nothing is cut off, all text can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.comparison.tables import Table
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.report.size import Bar, Section, page
from memplan.report.tradeoff import Curve
from memplan.sizing.estimate_range import Span
from page_widths import CHROMIUM, WIDTHS, probed

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


def size_page(folder: Path) -> Path:
    batches = [1, 2, 16, 2880]
    heads = ["batch", "baseline peak", "low", "expected", "high", "host peak", "time", "samples/s", ""]
    row = ["11.42 GiB", "11.41 GiB", "11.42 GiB", "11.42 GiB", "12.46 GiB", "≤2.46 s", "≥7,815"]
    verdict = "fits, tight; most samples/s: train with this"
    table = Table("RTX 3060 12 GB", heads, [[str(n), *row, verdict] for n in batches], "Low: tensors only.")
    other = "gradient checkpointing: torch.utils.checkpoint around each layer"
    more = Table(
        "Other ways", ["expected", "high", "time", "samples/s", "tokens/s", ""], [["-"] * 5 + [other]]
    )
    span = Span(11e9, 11.5e9, 12e9)
    bars = tuple(Bar(str(n), 7815.0, n == 16, span) for n in batches)
    path = folder / "size.html"
    curves = (Curve("FSDP2", [(2**34, 0.31), (2**35, 0.25)]), Curve("a plan", [(2**34, 0.28)]))
    sections = [Section(table, bars, "It fits.", curves), Section(more)]
    path.write_text(page("a model: will it fit?", sections, ["plan size"]))
    return path


def report_page(folder: Path) -> Path:
    save_graph(chain(20), "g.json")
    call = ["solve", "g.json", "--budget", "80%", "--solver", "rk-rotor", "--bound-time", "0", "-o", "s.json"]
    assert CliRunner().invoke(main, call).exit_code == 0
    assert CliRunner().invoke(main, ["report", "s.json", "-o", "report.html"]).exit_code == 0
    return folder / "report.html"


def bench_page(folder: Path) -> Path:
    save_graph(chain(12), "c.json")
    call = [
        "bench",
        "c.json",
        "--solvers",
        "rotor,store-all,chen-sqrt",
        "--budgets",
        "100%,90%,80%,70%,60%,50%",
    ]
    made = CliRunner().invoke(main, [*call, "--bound-time", "0", "--html", "bench.html"])
    assert made.exit_code == 0, made.stderr
    return folder / "bench.html"


@pytest.mark.parametrize(
    "make",
    [size_page, *(pytest.param(make, marks=pytest.mark.scripts) for make in (report_page, bench_page))],
)
def test_nothing_is_cut_off_and_all_text_can_be_read(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path)
    for width, dark in WIDTHS:
        found = probed(path, width, dark)
        assert found["width"] == width
        assert found["texts"] > 20
        assert found["page"], (width, dark)
        assert not found["out"], (width, found["out"])
        assert not found["small"], (width, found["small"])
        assert not found["cut"], width
        assert (found["ground"] < 0.2 and found["ink"] > 0.8) if dark else found["ground"] > 0.8


def test_the_probe_finds_what_is_wrong(tmp_path: Path) -> None:
    """A line that runs out of the page, and text too small to be read."""
    path = tmp_path / "wrong.html"
    line = '<p style="white-space: nowrap">' + "w" * 200 + '</p><p style="font-size: 4px">tiny</p>'
    path.write_text(f"<!doctype html><html><body>{line}</body></html>")
    found = probed(path, 390, dark=False)
    assert not found["page"]
    assert found["out"]
    assert found["small"] == ["tiny"]
