"""The picture of a schedule: each column beside a count by hand, the peak at its place, well-formed XML."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.report import Report
from memplan.planner.schedule.file import save_schedule
from memplan.report.picture import busy, folded, highest, picture
from memplan.report.subject import Subject
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

TIMES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@given(TIMES, st.data())
def test_a_column_has_what_is_highest_in_it(times: list[int], data: st.DataObject) -> None:
    at = np.array(sorted(times), np.float64)
    sums = np.array([[data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))] for _ in times])
    edges = np.linspace(0.0, 41.0, 8)
    shown = highest(at, sums, edges).sum(axis=1)
    for column, (low, high) in enumerate(pairwise(edges)):
        before = [k for k in range(len(at)) if at[k] <= low][-1:] or [0]
        inside = [k for k in range(len(at)) if low < at[k] < high]
        assert shown[column] == max(sums[k].sum() for k in [*before, *inside])


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=8))
def test_a_column_is_busy_as_long_as_its_intervals_say(pairs: list[tuple[float, float]]) -> None:
    """pairs: idle, then at work."""
    ends = np.cumsum(np.array(pairs).reshape(-1))
    start, end = ends[::2], ends[1::2]
    edges = np.linspace(0.0, 50.0, 23)
    found = busy(start, end, edges)
    for column, (low, high) in enumerate(pairwise(edges)):
        by_hand = sum(max(0.0, min(b, high) - max(a, low)) for a, b in zip(start, end, strict=True))
        assert abs(found[column] - by_hand) < 1e-9


def drawn(budget_percent: int) -> tuple[Subject, ElementTree.Element]:
    graph = chain(12)
    budget = baseline(graph).peak * budget_percent // 100
    found = solve("rotor", Problem(graph, budget))
    subject = Subject(
        graph, found.schedule, Report(found.figures, baseline(graph), found.lower_bound), budget
    )
    return subject, ElementTree.fromstring(picture(subject))


def test_the_highest_area_ends_at_the_peak() -> None:
    subject, svg = drawn(70)
    areas = [node for node in svg.iter() if node.tag.endswith("path") and node.get("fill")]
    tops = [float(y) for node in areas for y in re.findall(r"V([\d.]+)", node.get("d") or "")]
    min_memory, plain_peak = max(tops), baseline(subject.graph).peak
    assert abs((min_memory - min(tops)) / 280 - subject.report.figures.peak / plain_peak) < 0.002
    words = " ".join(node.text or "" for node in svg.iter() if node.tag.endswith("text"))
    assert "compute" in words
    assert "budget" in words


def test_what_runs_again_has_its_colour() -> None:
    recomputed = "#d1495b"
    _subject, tight = drawn(60)
    assert sum(node.get("fill") == recomputed for node in tight.iter()) > 1  # the legend and more
    graph = chain(12)
    schedule = baseline_schedule(graph)
    figures = solve("store-all", Problem(graph, baseline(graph).peak)).figures
    plain = picture(Subject(graph, schedule, Report(figures, baseline(graph))))
    assert plain.count(recomputed) == 1  # the style of a budget's line


def test_what_goes_on_in_the_next_iteration_is_drawn_at_the_start_of_this_one() -> None:
    """A queue from 3 to 5 and from 7 to 11 of a period of 10; from −2 to 1 it is the same as from 8 to 11."""
    start, end = folded(np.array([3.0, 7.0]), np.array([5.0, 11.0]), 10.0)
    assert sorted(zip(start.tolist(), end.tolist(), strict=True)) == [(0, 1), (3, 5), (7, 10)]
    start, end = folded(np.array([-2.0]), np.array([1.0]), 10.0)
    assert sorted(zip(start.tolist(), end.tolist(), strict=True)) == [(0, 1), (8, 10)]


def test_how_far_it_is_above_the_bound_is_told() -> None:
    """Of 3 s beside a bound of 2 s the gap is a third, but the schedule is a half above it."""
    graph = chain(4)
    plain = baseline(graph)
    figures = replace(plain, time=3.0)
    assert Report(figures, plain, 2.0).above == 0.5
    assert Report(figures, plain, 0.0).above is None
    svg = picture(Subject(graph, baseline_schedule(graph), Report(figures, plain, 2.0)))
    assert "at most 50.0% above the fastest there can be" in svg


def test_plan_show_writes_it(tmp_path: Path) -> None:
    graph = chain(4)
    save_graph(graph, tmp_path / "g.json")
    save_schedule(tmp_path / "s.json", graph, baseline_schedule(graph))
    words = ["show", str(tmp_path / "s.json"), "--graph", str(tmp_path / "g.json"), "--svg"]
    assert CliRunner().invoke(main, [*words, str(tmp_path / "p.svg")]).exit_code == 0
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")
    wrong = CliRunner().invoke(main, [*words, str(tmp_path / "p.png")])
    assert (wrong.exit_code, len(wrong.stderr.splitlines())) == (2, 1)
    assert ".svg" in wrong.stderr
