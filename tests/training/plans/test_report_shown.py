"""What a prompt and a notebook show of the public objects: short, with the figures, in valid HTML."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.generators import chain
from memplan.graphs.units import duration, format_bytes
from memplan.planner.baseline import baseline
from torch import nn

LONGEST = 250


class Text(HTMLParser):
    """The text of each element that is closed as it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.texts = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open
        self.texts.append(data)


def shown(thing: Any) -> list[str]:
    text = Text()
    text.feed(thing._repr_html_())
    assert not text.open
    return text.texts


@pytest.fixture(scope="module")
def step() -> memplan.Step:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    return memplan.optimize(module, (torch.randn(4, 8),), budget="100%", loss_fn=lambda y, _: y.sum())


def test_a_solution_shows_its_solver_and_figures() -> None:
    graph = chain(12)
    problem = memplan.Problem(graph, baseline(graph).peak * 4 // 5)
    found = memplan.solve("rotor", problem)
    assert "rotor" in repr(found)
    assert duration(found.figures.time) in repr(found)
    assert {format_bytes(found.figures.peak), duration(found.figures.time)} <= {*shown(found)}
    for each in (found, problem, graph, found.schedule, memplan.simulate(graph, found.schedule)):
        assert len(repr(each)) < LONGEST


def test_names_are_escaped() -> None:
    graph = chain(3)
    found = memplan.solve("store-all", memplan.Problem(graph, baseline(graph).peak))
    assert "Solution by <b>" in shown(replace(found, solver="<b>"))[0]


def test_a_bound_that_nothing_checks_says_by_whom() -> None:
    graph = chain(3)
    found = memplan.solve("store-all", memplan.Problem(graph, baseline(graph).peak))
    assert "not checked" not in repr(found)
    believed = replace(found, bounds=(replace(found.bounds[0], by="HiGHS"),))
    assert "by HiGHS, not checked" in repr(believed)


def test_a_step_shows_its_plan_and_what_it_has_done(step: memplan.Step) -> None:
    before = repr(step)
    assert before.startswith("<Step of Sequential: 0 iterations, ")
    step(torch.randn(4, 8))
    assert repr(step).startswith("<Step of Sequential: 1 iterations, ")
    assert format_bytes(step.plan.device.total) in shown(step)
    assert format_bytes(step.plan.limit.total) in repr(step.plan)
    assert shown(step.plan)[0] == f"Plan within {format_bytes(step.plan.limit.total)}"
    for each in (step, step.plan):
        assert len(repr(each)) < LONGEST
    assert repr(step.report()) == str(step.report())
