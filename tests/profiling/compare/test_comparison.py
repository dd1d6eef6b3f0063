"""Differences that eager has from itself: what counts as such, by tensors that are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, sqrt

import pytest
import torch
from memplan.profiling.compare import comparison as compared
from memplan.profiling.compare.comparison import MOST_REPEATS, REPEATS, STEADY, Comparison, difference
from torch import Tensor

Tensors = Mapping[str, Tensor]
EAGER = {"loss": torch.tensor([1.0, -2.0]), "w.grad": torch.tensor([8.0]), "w": torch.tensor([4.0])}
SPREAD = 2.0**-20


def off(by: float, *names: str) -> Tensors:
    return {name: x + by if name in names else x.clone() for name, x in EAGER.items()}


def within(repeats: Callable[[int], Tensors], planned: Tensors) -> tuple[Comparison | None, int]:
    """Return the finding, and how often eager ran once more."""
    ran = list[int]()

    def repeat() -> Tensors:
        ran.append(len(ran))
        return repeats(ran[-1])

    return compared._within_its_own(repeat, EAGER, planned, {"w"}), len(ran)


def test_what_is_within_eagers_own_spread_is_equal() -> None:
    found, ran = within(lambda _n: off(SPREAD, "loss"), off(STEADY * SPREAD, "loss"))
    assert found == Comparison(None, 0.0, 3, spreads=(("loss", SPREAD),))
    assert ran == REPEATS
    assert found is not None
    assert found.equal
    assert found.spread == SPREAD
    both, _ran = within(
        lambda n: {**off(SPREAD * (1 + n), "loss"), "w.grad": EAGER["w.grad"] + 2.0**-18}, off(SPREAD, "loss")
    )
    assert both is not None  # the largest of all repeats, the largest tensor first
    assert both.spreads == (("w.grad", 2.0**-18), ("loss", 2 * SPREAD))


def test_eager_repeats_until_its_spread_is_as_wide() -> None:
    planned = off(5 * SPREAD, "loss")
    found, ran = within(lambda n: off(SPREAD * (n >= 4) + SPREAD, "loss"), planned)
    assert found is not None
    assert ran == 5
    assert within(lambda _n: off(SPREAD, "loss"), planned) == (None, MOST_REPEATS)


def test_eager_that_is_equal_to_itself_has_no_spread() -> None:
    assert within(lambda _n: off(0.0), off(SPREAD, "loss")) == (None, REPEATS)


def test_a_tensor_that_comes_out_the_same_must_be_the_same_bits() -> None:
    found, ran = within(lambda _n: off(SPREAD, "loss"), off(SPREAD, "loss", "w"))
    assert (found, ran) == (None, MOST_REPEATS)


def test_a_spread_that_no_rounding_makes_is_another_computation() -> None:
    """Up to half of the digits; in weights any, since Adam divides; gradients by the steepest of all."""
    eps = torch.finfo(torch.float32).eps
    for name, size in (("loss", 2.0), ("w.grad", 8.0)):
        most = sqrt(eps) * size
        for part, fits in ((0.9, True), (1.1, False)):
            by = part * most
            found, _ran = within(lambda _n, by=by, name=name: off(by, name), off(by, name))
            assert (found is not None) == fits
    found, _ran = within(lambda _n: off(1.0, "w"), off(1.0, "w"))
    assert found is not None
    nan = {**EAGER, "w": torch.tensor([float("nan")])}
    assert within(lambda _n: nan, nan)[0] is None


def test_other_tensors_are_another_computation() -> None:
    fewer = {"loss": EAGER["loss"]}
    assert within(lambda _n: fewer, off(0.0)) == (None, 1)
    assert within(lambda _n: off(SPREAD, "loss"), fewer) == (None, 1)


def test_the_first_tensor_with_other_bits_is_named() -> None:
    assert difference(EAGER, off(0.0)) == Comparison(None, 0.0, 3)
    assert difference(EAGER, off(0.5, "w", "w.grad")) == Comparison("w.grad", 0.5, 3)
    assert difference(EAGER, {"loss": EAGER["loss"]}) == Comparison("w", inf, 3)
    shorter = {**EAGER, "loss": EAGER["loss"][:1]}
    assert difference(EAGER, shorter) == Comparison("loss", inf, 3)
    zero, minus = {"x": torch.tensor([0.0])}, {"x": torch.tensor([-0.0])}
    assert difference(zero, minus) == Comparison("x", 0.0, 1)  # equal numbers, other bits


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Comparison("w", 0.125, 9), "w differs from eager by up to 0.125"),
        (
            Comparison("w", inf, 9, suspects=("it draws", "it counts")),
            "w differs from eager beyond measure (suspects: it draws; it counts)",
        ),
    ],
)
def test_a_difference_in_words(one: Comparison, text: str) -> None:
    assert str(one) == one.difference == text
    assert not one.equal


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "a by 1"), (3, "a by 1, b by 2, c by 3"), (5, "a by 1, b by 2, c by 3 and 2 more")],
)
def test_three_names_are_listed(count: int, words: str) -> None:
    rows = [(name, float(size)) for size, name in enumerate("abcde", start=1)]
    assert compared._listed(rows[:count]) == words
