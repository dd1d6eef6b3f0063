"""Rows of figures and bounds, for people and as JSON, each of given figures."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from memplan.cli.printing.bounds import bound_document, bound_row
from memplan.cli.printing.figures import (
    arena_document,
    arena_rows,
    launch_rows,
    loop_row,
    made_document,
    made_rows,
    minimum_document,
    minimum_rows,
    policy_row,
    report_document,
    report_rows,
)
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.graphs.units import duration
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import minimum_memory, minimum_memory_once
from memplan.planner.budget import spelled
from memplan.planner.report import Report
from memplan.planner.simulator.simulate import Figures
from memplan.solvers.problem import Bound

BASELINE = Figures(10.0, 1000, 1000, 0, 0)


def rows(figures: Figures, budget: int | None = None, **report: Any) -> dict[str, str]:
    return dict(report_rows(Report(figures, BASELINE, **report), budget, None))


def test_a_schedule_without_transfers_has_four_rows() -> None:
    assert rows(Figures(12.0, 600, 600, 0, 0)) == {
        "time": f"{duration(12.0)}, +20.0% vs. baseline",
        "peak": spelled(600),
        "baseline": f"{duration(10.0)}, peak {spelled(1000)}",
        "lower bound": "none known",
    }


def test_each_memory_has_its_peak_if_it_holds_anything() -> None:
    found = rows(Figures(12.0, 600, 650, 500, 400, 300, 350), 800)
    assert found["peak"] == f"{spelled(600)}, 75.0% of the budget"
    assert found["min. budget"] == spelled(650)
    assert (found["host peak"], found["disk peak"]) == (spelled(500), spelled(400))
    assert (found["pinned peak"], found["min. pinned"]) == (spelled(300), spelled(350))
    assert not {"min. budget", "min. pinned"} & rows(Figures(12.0, 600, 600, 500, 0, 300, 300)).keys()


def test_a_bound_of_nothing_is_none() -> None:
    figures = Figures(12.0, 600, 600, 0, 0)
    known = rows(figures, lower_bound=9.0)["lower bound"]
    assert known == f"{duration(9.0)} (any order), gap 25.0%"
    assert ", by cp-sat, not checked)" in rows(figures, lower_bound=9.0, bound_by="cp-sat")["lower bound"]
    assert rows(figures, lower_bound=0.0)["lower bound"] == "none known"
    document = report_document(Report(figures, BASELINE, 9.0), 800)
    assert (document["budget"], document["overhead"], document["gap"], document["bound_by"]) == (
        800,
        pytest.approx(0.2),
        pytest.approx(0.25),
        "",
    )


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound(9.0, "b", "any"), "(any order), gap 25.0%"),
        (Bound(12.0, "b", "any"), "(any order), gap 0.0%"),
        (Bound(9.0, "b", "file", False, False, "chains"), ", backward once, chains), gap 25.0%"),
        (Bound(13.0, "b", "file"), "(traced order), beaten in another order"),
        (Bound(13.0, "b", "any", backward_again=False), "backward once), beaten with backward repeated"),
        (
            Bound(13.0, "b", "file", True, False, "x"),
            "beaten in another order or with backward repeated or in another form",
        ),
        (Bound(9.0, "b", "any", by="cp-sat"), "(any order, by cp-sat, not checked), gap 25.0%"),
        (Bound(9.0, "b", "file", False), "(traced order, no transfers), gap 25.0%"),
    ],
)
def test_a_bound_says_for_what_it_holds(bound: Bound, words: str) -> None:
    head, text = bound_row(bound, 12.0)
    assert head == ""
    assert text.startswith(f"{duration(bound.seconds)} (")
    assert text.endswith(words)


def test_bounds_in_json() -> None:
    assert bound_row(Bound(inf, "b", "file"), 12.0)[1].startswith("no schedule (traced order), beaten")
    found = bound_document(Bound(9.0, "b", "any"), 12.0)
    assert (found["seconds"], found["gap"]) == (9.0, pytest.approx(0.25))
    assert bound_document(Bound(0.0, "b", "any"), 0.0)["gap"] == 0.0
    nothing = bound_document(Bound(inf, "b", "any"), 12.0)
    assert (nothing["seconds"], nothing["gap"]) == (None, None)


def test_the_minimum_names_what_it_allows() -> None:
    graph = chain(3)
    least, once = minimum_memory(graph, None), minimum_memory_once(graph, None)
    assert minimum_document(graph, None) == {"min_memory": least, "min_memory_once": once}
    assert once is not None
    assert [*minimum_rows(graph, None)] == [
        ("minimum", f"{spelled(least)} (without offloading, any order)"),
        ("", f"{spelled(once)} (without offloading, traced order, backward once)"),
    ]
    ((_head, with_links), *_rest) = minimum_rows(graph, Machine(links=Links(1.0, 1.0)))
    assert "(with offloading, any order)" in with_links


@pytest.mark.parametrize(("launch", "limits"), [(0.5, False), (1.0, False), (1.5, True)])
def test_launches_are_a_row_if_they_limit(launch: float, limits: bool) -> None:
    draft = Draft("launches")
    x = draft.tensor("x", 8)
    draft.operation("a", time=1.0, launch=launch, writes=[x])
    draft.operation("b", time=1.0, launch=launch, reads=[x])
    graph = draft.graph()
    found = [*launch_rows(graph, baseline_schedule(graph))]
    said = f"{duration(2 * launch)}, computations {duration(2.0)}: launching is what limits"
    assert found == ([("launches", said)] if limits else [])


def test_an_arena_is_compared_with_its_bound() -> None:
    class Layout:
        size, bound, least = 1100, 1000, 1000

    layout: Any = Layout()
    assert arena_document(None) is None
    assert [*arena_rows(None)] == []
    assert arena_document(layout) == {"bytes": 1100, "bound": 1000}
    assert [*arena_rows(layout)] == [("arena", f"{spelled(1100)}, +10.0% against the peak")]
    assert [*arena_rows(layout, 2200)] == [
        ("arena", f"{spelled(1100)}, 50.0% of the budget, +10.0% against the peak")
    ]
    layout.least = 1100
    assert [*arena_rows(layout)] == [("arena", f"{spelled(1100)}, the smallest there is")]
    layout.least = layout.bound = 0
    assert [*arena_rows(layout)] == [("arena", f"{spelled(1100)}, +0.0% against the peak")]


def test_a_graph_that_was_made() -> None:
    graph, reference = chain(3), baseline(chain(3))
    assert made_rows(graph)[0][1].startswith(f"{graph.name}: {len(graph.operations)} operations, ")
    document = made_document(graph)
    assert (document["baseline_time"], document["baseline_peak"]) == (reference.time, reference.peak)
    assert (document["operations"], document["tensors"]) == (len(graph.operations), len(graph.tensors))
    assert loop_row("") == []
    assert loop_row("2 MiB") == [("in the loop", "2 MiB")]
    assert policy_row({"name": "fsdp"}) == []
    assert policy_row({"policy": "keep 2"}) == [("policy", "keep 2")]
