"""Batches whose values are others each time: three plans, then eager PyTorch, bit by bit, if it fits."""

from __future__ import annotations

import copy
import warnings
from itertools import pairwise
from typing import Any

import memplan
import pytest
import torch
from memplan.training.plans.value_plans import ENOUGH, ValuePlans
from torch import Tensor, nn
from torch.nn import functional

WIDTH, CLASSES = 16, 7


class Head(nn.Module):
    """Layers, and a loss in one of three forms whose operations follow from the labels' values."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.body = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.body(x)
        if self.form == "picked":
            return functional.cross_entropy(self.head(h[labels > 1]), labels[labels > 1])
        scores = self.head(h)
        if self.form == "margins":
            for row, label in enumerate(labels[:3].tolist()):
                scores[row, label] = scores[row, label] - 0.5
            return functional.cross_entropy(scores, labels)
        ends = [0, *(labels[:2] + 1).cumsum(0).tolist(), len(x)]
        documents = [scores[a:b] for a, b in pairwise(ends)]
        return torch.cat([torch.softmax(each @ each.T, -1) @ each for each in documents]).square().mean()


def batch(seed: int, rows: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)


def train(
    form: str, seeds: list[int], budget: str = "150%", rows: int = 24, **options: Any
) -> tuple[Any, list[str]]:
    """Train beside eager PyTorch, bit by bit. Returns the step and the warnings.

    rows: of the last six batches.
    """
    module = Head(form)
    baseline = copy.deepcopy(module)
    own, other = (torch.optim.AdamW(each.parameters(), 0.01) for each in (module, baseline))
    options = {"budget": budget, "cache": False, "solver": "search", "verify": False} | options
    step = memplan.optimize(module, batch(0), optimizer=own, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, seed in enumerate(seeds):
            x, labels = batch(seed, rows if number >= len(seeds) - 6 else 24)
            loss = baseline(x, labels)
            loss.backward()
            other.step()
            other.zero_grad()
            assert torch.equal(step(x, labels), loss)
    step.restore_to_device()
    for one, same in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, same)
    return step, [str(each.message) for each in caught]


@pytest.mark.scripts
@pytest.mark.parametrize("form", ["picked", "margins", "packed"])
def test_after_three_plans_eager_pytorch_runs_what_does_not_repeat(form: str) -> None:
    step, said = train(form, [*range(12), 0, 1])
    assert len(step.plans) == 1 + ENOUGH
    assert len(said) == 1
    assert f"{ENOUGH} plans for other values took " in said[0]
    assert "the input 1" in said[0]
    assert "test_value_plans.py:" in said[0], "the statement that asks"
    assert "run as eager PyTorch runs them, which fits the budget" in said[0]
    assert sum(plan.iterations for plan in step.report().plans) >= 6, "batches that have plans keep them"


@pytest.mark.scripts
def test_a_budget_below_eager_pytorch_goes_on_by_plans_and_says_the_way_out() -> None:
    step, said = train("picked", [*range(8)], "80%", max_plans=3)
    assert len(step.plans) == 3
    assert len(said) == 1, "no advice on max_plans="
    assert "eager PyTorch does not fit the budget. Plan the module before that line" in said[0]
    assert "test_value_plans.py:" in said[0]


@pytest.mark.scripts
def test_other_shapes_have_other_values_too() -> None:
    """No plan is made for the last six batches' shape: it would be used once."""
    step, said = train("picked", [*range(12)], rows=20)
    assert len(step.plans) == 1 + ENOUGH
    assert len(said) == 1


@pytest.mark.scripts
def test_values_that_repeat_keep_their_plans() -> None:
    step, said = train("picked", [0, 1, 2, 3] * 3)
    assert len(step.plans) == 4
    assert not said


def test_plans_pay_by_what_they_save_in_all_their_batches() -> None:
    class Step:
        """Stands for a plan."""

    first, second, other = Step(), Step(), Step()
    plans: Any = ValuePlans()
    plans.made(first, 2.0)
    plans.made(second, 1.0)
    for step in (first, first, second, other):
        plans.served(step)
    assert str(plans) == "2 plans for other values took 3.00 s and ran 5 batches"
    assert plans.pays(0.6)
    assert not plans.pays(0.5)
    assert not plans.pays(-1.0)
