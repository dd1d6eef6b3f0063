"""What the page is told is what the judge says: bytes by moment, lives, fates, modules."""

from __future__ import annotations

import base64
import gzip
import json
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Kind
from memplan.graphs.machine import Links, Machine, Memory, Peers
from memplan.graphs.transformations.gathering import with_gathers
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.graphs.units import format_bytes
from memplan.planner.addresses.lifetimes import WORKSPACE, lifetimes
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.report import Report
from memplan.planner.schedule.schedule import Initial, Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.timeline import timeline
from memplan.report.facts import Document, facts
from memplan.report.memory_timeline import by_kind, moments, passed
from memplan.report.modules import REST, modules
from memplan.report.page import ASSETS, CODE, page
from memplan.report.picture import picture
from memplan.report.subject import Subject
from memplan.report.tensor_outcomes import TensorOutcome, bars, fates
from strategies import Case, random_case


def cases(first: int, count: int) -> list[Case]:
    found: list[Case] = []
    for seed in range(first, first + count):
        case = random_case(Random(seed))
        try:
            simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        except InvalidScheduleError:
            continue
        found.append(case)
    return found


def reported(case: Case) -> Document:
    figures = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine).figures
    return facts(
        Subject(case.graph, case.schedule, Report(figures, baseline(case.graph)), case.budget, case.machine)
    )


@pytest.mark.scripts
@pytest.mark.parametrize("batch", range(2))
def test_bytes_by_kind_are_the_judges(batch: int) -> None:
    """Their sum is its curve at every step, and the highest moment its peak."""
    seen = longer = 0
    for case in cases(400 * batch, 400):
        line = timeline(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        rows = lifetimes(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        found = moments(case.graph, line, rows)
        if not len(case.schedule):
            continue
        seen += 1
        longer += int((rows.end > rows.start + rows.steps).sum())
        replay = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        assert by_kind(case.graph, rows).sum(axis=1).tolist() == replay.device_curve.tolist()
        assert found.sums.sum(axis=1).max() == replay.figures.peak
        assert (found.sums.sum(axis=1) == replay.device_curve[found.step]).all()
        assert (np.diff(found.at) >= 0).all()
    assert seen > 50
    assert longer > 20


def test_moments_of_a_picture() -> None:
    """x (4 bytes) is away while F2 makes y (8): F2 waits until the copy has ended.

    compute  F1F1....F2F2F2..B
    bytes    7   4   8     4
    """
    draft = Draft("there-and-back")
    x, y = draft.tensor("x", 4), draft.tensor("y", 8)
    draft.operation("F1", time=2, writes=[x], workspace=3)
    draft.operation("F2", time=3, writes=[y])
    draft.operation("B", time=1, reads=[x])
    graph, machine = draft.graph(), Machine(host_capacity=24, links=Links(d2h=2.0, h2d=4.0))
    steps = [compute(0), offload(0), delete(0), compute(1), delete(1), prefetch(0), compute(2)]
    schedule = Schedule.of([*steps, delete(0), delete(0, Memory.HOST)])
    line = timeline(graph, schedule, budget=8, machine=machine)
    rows = lifetimes(graph, schedule, budget=8, machine=machine)
    found = moments(graph, line, rows)
    activation = found.sums[:, Kind.ACTIVATION]
    assert list(zip(found.at.tolist(), activation.tolist(), strict=True)) == [(0, 4), (2, 4), (4, 8), (7, 4)]
    assert found.sums[:, -1].tolist() == [3, 0, 0, 0]
    assert fates(graph, schedule).tolist() == [TensorOutcome.MOVED, TensorOutcome.KEPT]


def test_an_iteration_that_begins_with_a_wait_is_told_from_its_start() -> None:
    """w comes back in the iteration before, too late for F: while F waits, it is on its way.

    compute  ....FFB
    H2D      www
    """
    draft = Draft("late")
    w, x = draft.tensor("w", 6, kind=Kind.PARAMETER), draft.tensor("x", 4)
    draft.operation("F", time=2, reads=[w], writes=[x])
    draft.operation("B", time=1, reads=[x])
    graph, machine = draft.graph(), Machine(host_capacity=24, links=Links(d2h=2.0, h2d=4.0))
    steps = [compute(0), delete(w), compute(1), delete(x), prefetch(w)]
    schedule = Schedule.of(steps, Initial(both=frozenset([w])))
    line = timeline(graph, schedule, machine=machine)
    assert line.start[0] > 0
    rows = lifetimes(graph, schedule, machine=machine)
    found = moments(graph, line, rows)
    assert found.at[0] == 0
    assert found.sums[0, Kind.PARAMETER] == 6
    figures = simulate(graph, schedule, machine=machine).figures
    document = facts(Subject(graph, schedule, Report(figures, baseline(graph)), None, machine, arena=77))
    assert document["figures"]["arena"] == 77
    assert [curve["at"][0] for curve in document["elsewhere"] if curve["at"]][:2] == [0, 0]


def test_the_baselines_curve_ends_at_its_peak_where_gathers_are_operations() -> None:
    """In more memory than the baseline's peak they would come earlier."""
    updated = with_updates(chain(6), optimizer=ADAMW, when="in-backward", device_rate=1e8)
    graph = with_gathers(updated, Peers(1e6, 1e-3, ranks=2))
    known = baseline(graph)
    subject = Subject(graph, baseline_schedule(graph), Report(known, known), None, Machine())
    assert max(facts(subject)["baseline"]["bytes"]) == known.peak
    assert f">{format_bytes(known.peak)}<" in picture(subject)


def test_bars_hold_what_the_moments_hold() -> None:
    """Outside of waits: what is there at a moment, by the bars, are the bytes of that moment."""
    compared = 0
    for case in cases(0, 300):
        line = timeline(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        rows = lifetimes(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        kept = rows.of(rows.tensor != WORKSPACE)
        start, end = bars(kept, passed(line), line.period)
        assert (end >= start).all()
        for step in np.flatnonzero(case.schedule.verbs == Verb.COMPUTE).tolist():
            if line.queue[step] != 0 or line.end[step] <= line.start[step] or line.end[step] > line.period:
                continue
            middle = (line.start[step] + line.end[step]) / 2
            there = sum((start <= moment) & (moment < end) for moment in middle + line.period * np.arange(4))
            assert int((kept.size * there).sum()) == int(kept.live()[step])
            compared += 1
    assert compared > 300


def test_fates_and_modules_by_hand() -> None:
    draft = Draft("again")
    w = draft.tensor("w", 2, kind=Kind.PARAMETER, layer="m.a")
    x, y = draft.tensor("x", 4, layer="m.a"), draft.tensor("y", 8, layer="m.b")
    draft.operation("F", time=1, reads=[w], writes=[x], layer="m.a")
    draft.operation("G", time=2, reads=[x], writes=[y], layer="m.b")
    draft.operation("H", time=4, reads=[x, y])
    graph = draft.graph()
    schedule = Schedule.of([compute(0), compute(1), delete(x), compute(0), compute(2)])
    assert fates(graph, schedule).tolist() == [
        TensorOutcome.KEPT,
        TensorOutcome.RECOMPUTED,
        TensorOutcome.KEPT,
    ]
    assert modules(graph, schedule, lifetimes(graph, schedule)) == [
        {"module": "m.a", "time": 1.0, "recompute": 1.0, "copied": 0, "peak": 6},
        {"module": "m.b", "time": 2.0, "recompute": 0.0, "copied": 0, "peak": 8},
        {"module": REST, "time": 4.0, "recompute": 0.0, "copied": 0, "peak": 0},
    ]


def test_all_parts_of_a_document_fit_together() -> None:
    moved = 0
    for case in cases(400, 150):
        document = reported(case)
        count = len(document["steps"]["step"])
        assert {len(column) for column in document["steps"].values()} == {count}
        assert {len(column) for column in document["tensors"].values()} == {len(case.graph.tensors)}
        ran = [k for k in range(count) if document["steps"]["queue"][k] < 2]
        different = {document["steps"]["of"][k] for k in ran}
        assert sum(document["steps"]["recomputed"]) == len(ran) - len(different)
        total = sum(row["time"] + row["recompute"] for row in document["modules"])
        assert total == pytest.approx(
            sum(document["steps"]["end"][k] - document["steps"]["start"][k] for k in ran), abs=1e-6
        )
        figures, curves = document["figures"], {curve["name"]: curve for curve in document["elsewhere"]}
        for name in ("host", "pinned", "disk"):
            most = max(curves[name]["bytes"], default=0) if name in curves else 0
            assert most == figures[f"{name}_peak"]
        assert max(document["baseline"]["bytes"], default=0) == figures["baseline_peak"]
        moved += len(curves) > 0
    assert moved > 10


def test_an_empty_schedule_and_names_that_attack() -> None:
    draft = Draft("</script><b>")
    draft.tensor("</script><script>alert(1)</script>", 1, kind=Kind.PARAMETER)
    graph = draft.graph()
    schedule = baseline_schedule(graph)
    figures = simulate(graph, schedule).figures
    document = {**facts(Subject(graph, schedule, Report(figures, figures))), "title": graph.name}
    html = page(document, graph.name)
    assert "alert" not in html
    assert "<title>&lt;/script&gt;&lt;b&gt;</title>" in html
    packed = html.split('id="data">')[1].split("<")[0]
    assert json.loads(gzip.decompress(base64.b64decode(packed)))["title"] == graph.name


OTHERS = ("echarts.min.js", "filter.js")
"""A library, and the code of another page: `plan size`'s."""


def test_all_code_is_in_the_page_and_a_file_is_short() -> None:
    files = {path.name: path.read_text() for path in ASSETS.glob("*.js") if path.name not in OTHERS}
    assert set(files) == set(CODE)
    html = page({}, "all")
    places = [html.index(files[name]) for name in CODE]
    assert places == sorted(places)
    assert all(50 <= text.count("\n") <= 400 and text.startswith("// ") for text in files.values())
