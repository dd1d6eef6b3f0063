"""When a portfolio without a time limit ends, by a clock that the test sets."""

from __future__ import annotations

from math import inf

import pytest
from memplan.solvers import clock, incumbent
from memplan.solvers.auto.stopping import Restarts, default_seconds, ending
from memplan.solvers.clock import Clock
from memplan.solvers.incumbent import Incumbent


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    for module in (clock, incumbent):
        monkeypatch.setattr(module, "monotonic", lambda: moment[0])
    return moment


def test_the_limit_grows_with_the_graph_and_is_two_minutes_for_thousands_of_operations() -> None:
    assert [default_seconds(n) for n in (0, 500, 1400, 3000, 9000)] == [20.0, 20.0, 56.0, 120.0, 120.0]
    assert [default_seconds(n) for n in (10_000, 20_000, 100_000)] == [120.0, 240.0, 1200.0]


def test_a_search_begins_elsewhere_while_that_helps_and_little_time_is_over(now: list[float]) -> None:
    race, limit = Incumbent(), Clock(100.0)
    race.found(9.0, "first")
    restarts = Restarts(race, limit)
    assert restarts.begin(), "the first always"
    assert not restarts.begin(), "it has found nothing"
    race.found(8.0, "elsewhere")
    assert restarts.begin()
    race.found(7.0, "elsewhere")
    now[0] += 26.0
    assert not restarts.begin(), "most of the time is for what has begun"


def test_what_a_search_waits_for_does_not_count(now: list[float]) -> None:
    """Compiling, on the first run on a machine."""
    limit = Clock(None)
    now[0] += 60.0
    assert (limit.share, limit.left) == (0.0, inf)
    limit.begin_limit(20.0)
    assert (limit.share, limit.left, limit.over) == (0.0, 20.0, False)
    now[0] += 20.0
    assert limit.over


def test_an_end_without_a_proof_says_for_how_long_nothing_was_found(now: list[float]) -> None:
    race = Incumbent()
    now[0] += 5.0
    assert (race.idle, ending(race)) == (0.0, ""), "there is no schedule"
    race.found(9.0, "one")
    now[0] += 0.5
    assert ending(race) == ""
    race.proved(1.0, "a bound")
    race.found(9.5, "a slower one")
    now[0] += 2.0
    assert ending(race) == "nothing faster in the last 2.50 s"
