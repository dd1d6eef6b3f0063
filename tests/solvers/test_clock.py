"""The clock of a solve, against a clock that is set by hand."""

from __future__ import annotations

from math import inf

import pytest
from memplan.solvers import clock
from memplan.solvers.clock import Clock


class Hands:
    """A `monotonic` that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clock, "monotonic", hands)
    return hands


def test_a_limit_is_over_after_its_seconds(hands: Hands) -> None:
    timed = Clock(10.0)
    assert (timed.left, timed.limit, timed.over, timed.goes_on()) == (10.0, 10.0, False, True)
    hands.now += 10.5
    assert (timed.left, timed.limit, timed.over, timed.goes_on()) == (-0.5, 0.0, True, False)


def test_without_a_limit_it_goes_on_until_the_answer_is_wanted(hands: Hands) -> None:
    wanted = list[bool]()
    endless = Clock(None, lambda: bool(wanted))
    hands.now += 1e9
    assert (endless.left, endless.limit, endless.expired) == (inf, None, False)
    wanted.append(True)
    assert endless.expired
    assert not endless.over  # the time is not
    assert not endless.part(0.5).goes_on()


@pytest.mark.parametrize(
    ("seconds", "share", "most", "limit"),
    [
        (10.0, 0.5, inf, 4.0),
        (10.0, 0.5, 3.0, 3.0),
        (None, 0.5, 3.0, 3.0),
        (None, 0.5, inf, None),
        (1.0, 0.5, inf, 0.0),
    ],
)
def test_a_part_is_a_share_of_what_is_left(
    hands: Hands, seconds: float | None, share: float, most: float, limit: float | None
) -> None:
    whole = Clock(seconds)
    hands.now += 2.0
    assert whole.part(share, most).limit == limit


def test_an_interrupt_ends_the_block_and_is_recorded(hands: Hands) -> None:
    endless, timed = Clock(None), Clock(10.0)
    timed.raise_if_interrupted()
    hands.now += 2.5
    assert (endless.share, timed.share) == (0.0, 0.25)
    for each in (endless, timed):
        with each.until_interrupted():
            raise KeyboardInterrupt
        assert (each.interrupted, each.goes_on(), each.over, each.share) == (True, False, False, inf)
        with pytest.raises(KeyboardInterrupt):
            each.raise_if_interrupted()


def test_only_interrupts_end_the_block_quietly(hands: Hands) -> None:
    timed = Clock(10.0)
    with pytest.raises(ValueError, match="another"), timed.until_interrupted():
        raise ValueError("another")
    assert timed.goes_on()
