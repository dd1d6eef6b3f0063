"""Ways to run an operation: whether a schedule can be faster than the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.planner.baseline import baseline
from memplan.solvers.problem import Problem, Status
from memplan.solvers.registry import run as registry
from memplan.solvers.stages.slots import RunColumns, has_faster_variants
from not_none import not_none


def graph_with(variant: Mode, *, saved_is_read: bool = True) -> Graph:
    """Its first operation takes 4 s for `y` (1) and `saved` (2), or runs that way."""
    draft = Draft("ways")
    x = draft.tensor("x", 4, Kind.INPUT)
    y, saved, z, g, h, d = (draft.tensor(name, 4) for name in ("y", "saved", "z", "g", "h", "d"))
    draft.operation("f", time=4.0, reads=[x], writes=[y, saved], modes=[variant])
    draft.operation("f2", time=1.0, reads=[y], writes=[z])
    draft.operation("loss", time=1.0, reads=[z], writes=[g], phase=Phase.LOSS)
    draft.operation("b2", time=1.0, reads=[g, y], writes=[h], phase=Phase.BACKWARD)
    read = [h, saved] if saved_is_read else [h]
    draft.operation("b", time=1.0, reads=read, writes=[d], phase=Phase.BACKWARD)
    return draft.graph([d])


FASTER = graph_with(Mode("fast", 1.0, 8, (1, 2)))


@pytest.mark.parametrize(
    ("graph", "faster"),
    [
        (FASTER, True),
        (graph_with(Mode("slow", 5.0, 0, (1, 2))), False),
        (graph_with(Mode("host", 1.0, 0, (1, 2), on_host=True)), False),
        (graph_with(Mode("go", 1.0, 0, (1, 2), writes_host=(2,))), False),
        (graph_with(Mode("part", 1.0, 0, (1,))), False),
        (graph_with(Mode("part", 1.0, 0, (1,)), saved_is_read=False), True),
    ],
    ids=["all", "slower", "host", "written below", "part", "part that is read"],
)
def test_a_way_is_faster_if_it_makes_all_that_is_read(graph: Graph, faster: bool) -> None:
    assert has_faster_variants(graph) == faster


@pytest.mark.parametrize("name", ["auto", "search", "rk-rotor", "rockmate", "tw-remat", "checkmate"])
def test_the_plain_schedule_is_no_optimum_where_an_operation_has_a_faster_way(name: str) -> None:
    settings = {"workers": "1", "moves": "20"} if name == "auto" else None
    found = registry.solve(name, Problem(FASTER, baseline(FASTER).peak + 8), 5.0, settings, bound_seconds=0.0)
    assert found.figures.time == 5.0 or (found.figures.time, found.status) == (8.0, Status.HEURISTIC)
    assert found.figures.time == 5.0 or name in ("rk-rotor", "rockmate", "tw-remat")


def test_a_sequence_has_the_values_that_give_it_back() -> None:
    columns = RunColumns({(0, 0): [(0, 0)], (1, 0): [(0, 1), (1, 2)], (1, 1): [(0, 3), (1, 4)]})
    for runs in ([(0, 0), (1, 0)], [(0, 0), (0, 1), (1, 1)]):
        values = not_none(columns.values(runs))
        assert sorted(values) == [0, 1, 2, 3, 4]
        assert columns.sequence(np.array([values[column] for column in range(5)])) == runs
    assert columns.values([(1, 0)]) is None
