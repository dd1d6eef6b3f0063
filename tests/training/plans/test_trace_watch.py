"""A loop whose calls are traced anew again and again is warned once, with what changed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import memplan
import pytest
import torch
from memplan.training.plans.trace_watch import TraceWatch
from torch import nn


def warned(traced: Sequence[bool]) -> list[int]:
    """Return after which calls a watch warns."""
    watch, found = TraceWatch(), list[int]()
    for number, anew in enumerate(traced):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.note("the rate is 3" if anew else None)
        assert all("the rate is 3" in str(each.message) for each in caught)
        found += [number] * len(caught)
    return found


@pytest.mark.parametrize(
    ("traced", "after"),
    [
        ([True, True], []),
        ([True, True, True], [2]),
        ([True, False, True, False, True], [4]),
        ([True, True, False, False, False, True], []),  # three, but of six calls
        ([True] * 9, [2]),  # once
        ([False] * 9, []),
    ],
)
def test_three_traces_in_five_calls_warn_once(traced: list[bool], after: list[int]) -> None:
    assert warned(traced) == after


def test_a_step_says_which_shape_is_new() -> None:
    module, x = nn.Linear(4, 4), torch.randn(6, 4)
    step = memplan.optimize(
        module, x, loss_fn=lambda y: y.square().mean(), budget="100%", solver="store-all", states=0
    )
    for rows in (5, 4):
        step(x[:rows]).backward()
    with pytest.warns(UserWarning, match=r"3 of the last 3 calls .* traced anew.*\[3, 4\].*pad_to_lengths"):
        step(x[:3]).backward()


def test_a_function_says_which_argument_changes() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)

    def loss(x: torch.Tensor, power: float) -> torch.Tensor:
        return (module(x) ** power).sum()

    planned = memplan.optimize(loss, budget="100%", solver="store-all")
    for power in (2.0, 3.0, 4.0):
        planned(x, power).backward()
    with pytest.warns(UserWarning, match="traced anew, which takes seconds each: .*power"):
        planned(x, 5.0).backward()
