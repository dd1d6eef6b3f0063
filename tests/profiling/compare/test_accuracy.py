"""Kernels held against float64: one as exact as eager's passes, a wrong one is named with both errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from memplan.graphs.errors import DifferenceError
from memplan.profiling.compare import accuracy as compared
from memplan.profiling.compare.accuracy import MOST, SAME, Accuracy, accuracy
from memplan.profiling.splitting.choice import Choice
from memplan.profiling.splitting.split import Split
from splitting_families import FAMILIES, Traced, traced


@pytest.fixture(scope="module")
def split() -> tuple[Traced, Split]:
    one = traced(next(iter(FAMILIES)))
    choice = Choice(one.program, one.measured)
    most = max(map(choice.footprint, range(len(one.program.operations))))
    found = choice.within(int(0.6 * most))
    assert found is not None
    return one, found


def scaled(found: Split, factor: float) -> Any:
    """Its kernels with results that are off by a factor."""

    def off(kernel: Any) -> Any:
        return lambda *given: [x * factor for x in kernel(*given)]

    return {name: (members, off(kernel)) for name, (members, kernel) in found.kernels.items()}


def test_results_of_all_kernels_are_counted(split: tuple[Traced, Split]) -> None:
    one, found = split
    told = accuracy(one.iteration, one.program, found.program, found.kernels)
    assert 1 <= told.compared <= sum(len(members.outputs) for members, _kernel in found.kernels.values())
    assert 0.2 < told.ratio < MOST
    assert str(Accuracy(3, 1.256)) == "3 results of kernels as exact as eager's (error 1.26 times its own)"
    nothing = accuracy(one.iteration, one.program, one.program, {})
    assert nothing == Accuracy(0, 1.0)


def test_a_wrong_kernel_is_named_with_its_error_and_eagers(split: tuple[Traced, Split]) -> None:
    one, found = split
    with pytest.raises(DifferenceError) as error:
        accuracy(one.iteration, one.program, found.program, scaled(found, 1.01))
    match = re.fullmatch(r"\S+ is (\S+) from exact, eager's own (\S+)", str(error.value))
    assert match
    wrong, own = map(float, match.groups())
    assert wrong > MOST * own > 0
    # What is off by less than roundings of the largest number is no other result.
    accuracy(one.iteration, one.program, found.program, scaled(found, 1 + 2 * torch.finfo(torch.float32).eps))


def test_a_result_of_the_iteration_may_not_be_another(
    split: tuple[Traced, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than the limits is an error, and so is what is no number."""
    one, _found = split
    results = compared._Run.results
    for factor, refused in ((1 + SAME / 2, False), (1 + 2 * SAME, True), (float("nan"), True)):
        runs = list[object]()

        def spoilt(run: Any, runs: list[object] = runs, factor: float = factor) -> Any:
            runs.append(run)
            made = results(run)
            return (
                {name: x * factor if x.is_floating_point() else x for name, x in made.items()}
                if len(runs) == 2
                else made
            )

        monkeypatch.setattr(compared._Run, "results", spoilt)
        if refused:
            with pytest.raises(DifferenceError, match=r" is another: \S+ from eager's"):
                accuracy(one.iteration, one.program, one.program, {})
            assert len(runs) == 3  # the third with inputs that are off by a rounding
        else:
            accuracy(one.iteration, one.program, one.program, {})
            assert len(runs) == 2
