"""The history of a race is what its news say, in any order and from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.cli.printing.race_log import RaceLog
from memplan.solvers.incumbent import PROVEN, Incumbent
from memplan.solvers.milp.result import Progress

SECONDS = st.floats(1.0, 100.0)
NEWS = st.lists(st.tuples(SECONDS, st.booleans()), max_size=12)


@settings(max_examples=200)
@given(NEWS, st.floats(0.0, 0.9))
def test_best_and_bound_are_those_of_all_news_so_far(news: list[tuple[float, bool]], share: float) -> None:
    """News: seconds, and whether a schedule takes them or they are a bound."""
    race = Incumbent()
    for count, (seconds, schedule) in enumerate(news, start=1):
        (race.found if schedule else race.proved)(seconds, "who")
        best = min((s for s, found in news[:count] if found), default=inf)
        bound = max((s for s, found in news[:count] if not found), default=0.0)
        assert abs(race.bound - bound) <= 1e-8 * bound
        assert race.best == best or abs(race.best - best) <= 1e-8 * best
        enough = race.best * (1 - max(share, PROVEN)) <= race.bound + 1e-9
        assert race.within(share) == (best < inf and enough)
    for earlier, later in pairwise(race.history):
        assert earlier.elapsed <= later.elapsed
        assert earlier.best > later.best or earlier.bound < later.bound
        assert earlier.gap >= later.gap >= 0.0


def test_a_gap_of_which_nothing_is_known_is_no_share() -> None:
    race = Incumbent()
    race.found(1.0, "fsdp")
    assert race.history[-1].gap == inf
    assert not race.within(0.99)
    race.proved(0.25, "links")
    assert race.history[-1].gap == 0.75
    written = list[str]()
    log = RaceLog(written.append)
    for standing in race.history:
        log._next = 0.0
        log(standing)
    rows = [line.split()[-2:] for line in written if "source" not in line]
    assert rows == [["-", "fsdp"], ["75.00%", "links"]]
    known, unknown = (Progress(1.0, bound, 1.0).line(1.0) for bound in (0.25, 0.0))
    assert "gap 75.00%," in known
    assert "gap -," in unknown


def test_it_takes_news_from_many_threads_and_passes_them_on_in_order() -> None:
    race, heard = Incumbent(), []
    race.listen = heard.append
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: race.found(float(number), "solver"), range(400, 0, -1)))
    assert heard == race.history
    assert race.best == 1.0
    assert all(earlier.best > later.best for earlier, later in pairwise(heard))
