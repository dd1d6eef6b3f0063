"""When the best schedule known is enough: by a gap that is proven, or once patience is over."""

from __future__ import annotations

from math import inf

from memplan.solvers.incumbent import Incumbent


def test_a_schedule_is_enough_within_the_gap() -> None:
    race = Incumbent()
    assert not race.within(1.0), "there is no schedule"
    race.found(12.0, "one")
    assert not race.within(0.5), "there is no bound"
    race.proved(10.0, "another")
    shares = (0.0, 0.1, 0.15, 0.2, 1.0)
    assert [race.within(share) for share in shares] == [race.enough(12.0, share) for share in shares]
    assert [race.enough(12.0, share) for share in shares] == [False, False, False, True, True]
    assert all(race.enough(10.0, share) for share in shares), "within 0: proven to be the fastest"
    assert not race.enough(10.0001, 0.0)


def test_any_schedule_is_enough_once_patience_is_over() -> None:
    race = Incumbent(patience=-1.0)
    assert (race.best, race.within(0.0)) == (inf, False)
    race.found(12.0, "one")
    assert (race.best, race.within(0.0)) == (12.0, True)


def test_its_history_is_by_the_seconds_since_the_start() -> None:
    race = Incumbent()
    race.found(12.0, "one")
    race.proved(10.0, "another")
    first, second = race.history
    assert 0.0 <= first.elapsed <= second.elapsed < 300.0
