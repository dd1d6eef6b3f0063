"""Refusals told again for a budget that holds other things too."""

from __future__ import annotations

from math import inf

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.planner.bounds import least_memory, minimum_memory
from memplan.planner.budget import spelled
from memplan.solvers.problem import Bound, InfeasibleError, NotFoundError, Problem, SearchStats
from memplan.solvers.registry import run as registry


def test_a_refusal_beside_other_bytes_keeps_what_it_knows() -> None:
    refusal = InfeasibleError("rotor", 100, 150, 90)
    refusal.notes = ("a note",)
    refusal.add_details(120, ())
    more = refusal.with_extra_bytes(1000)
    assert (more.budget, more.least, more.min_memory, more.min_memory_once) == (1100, 1150, 1090, 1120)
    assert more.notes == ("a note",)
    assert str(more).endswith("unless a backward operation runs twice")
    assert "1,120 B" in str(more)


def test_one_that_found_nothing_stays_one() -> None:
    refusal = NotFoundError("search", 100, 90, 110)
    refusal.add_details(None, [Bound(inf, "residency", "any")])
    more = refusal.with_extra_bytes(1000)
    assert isinstance(more, NotFoundError)
    assert (more.budget, more.min_memory, more.found, more.least) == (1100, 1090, 1110, None)
    assert "is 1,110 B" in str(more)
    assert str(more).endswith("it is proven that there is none without offloading, in any order")


def test_a_minimum_says_for_which_schedules_and_what_goes_below() -> None:
    """A chain with weights: without offloading they stay on the device."""
    graph = chain(6, parameters=True)
    alone, offloaded = minimum_memory(graph), least_memory(graph)
    assert offloaded < alone
    with pytest.raises(InfeasibleError) as refused:
        registry.solve("auto", Problem(graph, alone - 1), 1.0, bound_seconds=0.0)
    line = str(refused.value)
    assert f"below the minimum memory of {spelled(alone)} without offloading" in line
    assert f"with offloading the minimum memory is {spelled(offloaded)}: add --machine NAME" in line
    linked = Machine(links=Links(1e9, 1e9))
    with pytest.raises(InfeasibleError) as refused:
        registry.solve("joint", Problem(graph, offloaded - 1, linked), 1.0, bound_seconds=0.0)
    line = str(refused.value)
    assert f"below the minimum memory of {spelled(offloaded)} with offloading" in line
    assert "--machine" not in line


def test_a_budget_is_a_whole_number() -> None:
    with pytest.raises(InputError, match=r"budget 0.6 is not a whole number of bytes"):
        registry.solve("auto", Problem(chain(3), 0.6))  # pyright: ignore[reportArgumentType]


def test_the_effort_for_a_schedule_of_no_seconds_has_no_gap() -> None:
    assert SearchStats.of(3, 0.0, -1e-11) == SearchStats(3, 0.0)
    assert SearchStats.of(3, 2.0, 1.0) == SearchStats(3, 0.5)
