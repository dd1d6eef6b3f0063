"""The state of a search: the result's own figures, the bound, and the time that is over."""

from __future__ import annotations

import pytest
from memplan.cli.printing.live import Live
from memplan.cli.printing.search_state import SearchState
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline
from memplan.solvers import clock
from memplan.solvers.clock import Clock
from memplan.solvers.incumbent import Incumbent
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry


def test_it_has_what_is_known_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: moment[0])
    graph, race = chain(4, uniform=True), Incumbent()
    state, time = SearchState(graph, race), baseline(graph).time
    line = Live("auto: solving for 3 MiB")
    line.announce(state)
    assert line.text().endswith("auto: solving for 3 MiB")
    race.proved(time, "all operations")
    assert line.text().endswith(f"3 MiB; bound {time:.1f} s")
    race.clock = Clock(None)
    race.found(1.25 * time, "search")
    assert str(state) == f"best {1.25 * time:.1f} s, +25.0% vs. baseline, bound {time:.1f} s, gap 20.00%"
    race.clock.begin_limit(40.0)
    moment[0] = 10.0
    assert line.text().endswith("gap 20.00%, 25% of the time is over, 30.0 s left at most")
    moment[0] = 50.0
    assert str(state).endswith("gap 20.00%"), "only bounds and the file are left"


def test_the_best_is_compared_as_the_result_is() -> None:
    graph, race = chain(6, seed=4), Incumbent()
    problem = Problem(graph, baseline(graph).peak * 3 // 4)
    found = registry.solve("rotor", problem, 5.0, bound_seconds=0, race=race)
    over = found.figures.time / baseline(graph).time - 1
    assert f"{over:+.1%} vs. baseline" in str(SearchState(graph, race))
    assert race.clock is not None
