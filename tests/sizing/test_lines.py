"""Bytes on chords: of a maximum of straight lines every answer is the maximum itself, or none."""

from __future__ import annotations

from memplan.sizing.lines import ConvexBytes

LINES = ((0, 1000), (10, 700), (25, 100))
"""Rate per batch and constant: the maximum bends at 30 and 40."""


def peak(batch: int) -> int:
    return max(rate * batch + constant for rate, constant in LINES)


def known(*batches: int, first: int | None = 1) -> ConvexBytes:
    found = ConvexBytes(first)
    for batch in batches:
        found.add(batch, peak(batch))
    return found


def test_what_is_said_is_the_maximum() -> None:
    replayed = known(1, 2, 16, 32, 36, 64, 128, 256)
    answers = {batch: replayed.at(batch) for batch in range(1, 300)}
    said = {batch: found for batch, found in answers.items() if found is not None}
    assert all(found == peak(batch) for batch, found in said.items())
    assert {2, 10, 100, 200} <= said.keys()  # on chords that a batch within meets


def test_two_batches_are_no_proof() -> None:
    assert known(1, 64).at(20) is None


def test_above_all_that_was_replayed_nothing_is_said() -> None:
    assert known(64, 128, 256).at(257) is None
    assert known(64, 128, 256).at(63) is None


def test_a_bend_within_is_seen() -> None:
    assert known(2, 32, 128).at(64) is None


def test_batches_below_the_line_do_not_count() -> None:
    assert known(64, 128, 256, first=None).at(100) is None
    assert known(64, 128, 256, first=128).at(100) is None
    assert known(64, 128, first=64).at(64) == peak(64)


def test_a_line_that_is_given_up_leaves_what_was_traced() -> None:
    found = known(1, 2, 16, 32)
    found.follow(None, {1, 2})
    assert [found.at(batch) for batch in (1, 2, 8, 16, 32)] == [peak(1), peak(2), None, None, None]


def test_a_line_that_is_taken_later_has_what_was_known() -> None:
    found = known(64, 128, 256, first=None)
    found.follow(64, ())
    assert found.at(100) == peak(100)
