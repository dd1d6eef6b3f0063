"""Batches for which no plan can be made: eager PyTorch runs them within the budget, with one warning."""

from __future__ import annotations

import copy
import random
import warnings
from types import SimpleNamespace
from typing import Any, cast

import memplan
import pytest
import torch
import unplanned
from memplan.devices.measuring.live_bytes import Peak, ProfilerOnError
from memplan.graphs.machine import Links, Machine
from memplan.model.iteration import Iteration
from memplan.steps.execute import PlannedStep
from memplan.torch_support.unsupported import TraceError
from memplan.training.step import eager_batches
from torch import Tensor, nn
from torch.nn import functional

LENGTHS = (64, 20, 64, 40, 20, 21, 64)
"""Of the batches; those below 30 can't be traced."""


class Drawing(nn.Module):
    """Short batches are scaled by a random number of Python's, which no plan can draw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        wide = (
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(3)
        )
        self.layers = nn.Sequential(nn.Linear(6, 16), *wide, nn.Linear(16, 3))
        self.draws_below, self.draws_from = 30, 65

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < self.draws_below or len(x) >= self.draws_from:
            x = x * random.random()
        return self.layers(x)


def batch(length: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(length)
    return torch.randn(length, 6), torch.randint(3, (length,))


def optimizer_of(kind: str, module: nn.Module) -> torch.optim.Optimizer:
    if kind == "planned later":
        return unplanned.Adagrad(module.parameters(), 0.01)
    return torch.optim.AdamW(module.parameters(), 0.01)


def planned(module: nn.Module, **options: Any) -> Any:
    x, labels = batch(64)
    given: dict[str, Any] = {"budget": "100%", "time_limit": 0.5, "cache": False}
    return memplan.optimize(module, x, targets=labels, loss_fn=functional.cross_entropy, **(given | options))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["of the loop", "planned", "planned later", "clipped", "moved", "averaged"])
def test_they_train_as_eager_pytorch_with_one_warning(kind: str) -> None:
    module = Drawing()
    baseline = copy.deepcopy(module)
    own, theirs = optimizer_of(kind, module), optimizer_of(kind, baseline)
    options: dict[str, Any] = {} if kind == "of the loop" else {"optimizer": own, "budget": 10**7}
    if kind == "clipped":
        options["max_grad_norm"] = 0.1
    if kind == "averaged":
        options["ema"] = 0.9
    if kind == "moved":
        options |= {"machine": Machine(links=Links(1e9, 1e9)), "solver": "joint", "budget": "150%"}
    step = planned(module, **options)
    losses: list[Tensor] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for length in LENGTHS:
            x, labels = batch(length)
            random.seed(length)
            torch.manual_seed(length)
            losses.append(step(x, targets=labels))
            if kind == "of the loop":
                losses[-1].backward()
                own.step()
                own.zero_grad()
    assert len([each for each in said if "run as eager PyTorch" in str(each.message)]) == 1
    assert len(step.plans) == 2  # of 64 and 40
    step.restore_to_device()
    for length, loss in zip(LENGTHS, losses, strict=True):
        x, labels = batch(length)
        random.seed(length)
        torch.manual_seed(length)
        expected = functional.cross_entropy(baseline(x), labels)
        expected.backward()
        if kind == "clipped":
            nn.utils.clip_grad_norm_(baseline.parameters(), 0.1)
        theirs.step()
        theirs.zero_grad()
        assert torch.equal(loss.detach(), expected.detach())
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)
        for key, state in theirs.state[other].items():
            assert torch.equal(own.state[one][key], state)


def test_a_batch_of_the_same_form_is_not_traced_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    step = planned(Drawing())
    traced: list[int] = []
    planner = step._executor.planner.__class__
    made = planner.__call__
    monkeypatch.setattr(planner, "__call__", lambda *given: traced.append(1) or made(*given))
    for _time in range(3):
        x, labels = batch(20)
        step(x, targets=labels).backward()
    assert len(traced) == 1


def test_outputs_are_those_of_the_batch() -> None:
    module = Drawing()
    step = planned(module, return_outputs=True)
    x, labels = batch(20)
    random.seed(1)
    torch.manual_seed(1)
    step(x, targets=labels).backward()
    random.seed(1)
    torch.manual_seed(1)
    assert torch.equal(step.output, module(x).detach())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("why", ["longer", "budget", "first"])
def test_those_that_may_not_fit_are_refused(why: str) -> None:
    module = Drawing()
    if why == "first":
        module.draws_below = 65
        with pytest.raises(TraceError, match="draws Python's random numbers"):
            planned(module)
        return
    step = planned(module, budget="70%" if why == "budget" else "100%", states=0, gradients="freed")
    x, labels = batch(65 if why == "longer" else 20)
    with pytest.raises(TraceError, match="draws Python's random numbers"):
        step(x, targets=labels)
    x, labels = batch(64)
    step(x, targets=labels).backward()  # and training goes on


def test_one_that_takes_more_than_the_budget_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Drawing()
    step = planned(module)
    x, labels = batch(20)
    monkeypatch.setattr(eager_batches, "live_peak", lambda call, _device: Peak(10**9, 0, call()))
    with pytest.warns(UserWarning, match="more than the budget of .*: further ones are refused"):
        step(x, targets=labels).backward()
    with pytest.raises(TraceError, match="draws Python's random numbers"):
        step(x, targets=labels)


def test_accumulated_updates_refuse_them() -> None:
    module = Drawing()
    step = planned(
        module, optimizer=optimizer_of("planned", module), gradient_accumulation_steps=2, budget=10**7
    )
    x, labels = batch(20)
    with pytest.raises(TraceError, match="draws Python's random numbers"):
        step(x, targets=labels)


def test_batches_of_any_size_run_eagerly_while_a_profiler_is_on_with_one_warning() -> None:
    inputs, on = (torch.ones(9, 6),), ProfilerOnError("the profiler is on")
    eager = eager_batches.EagerBatches(Iteration(Drawing(), inputs))
    resident, moved = (
        cast("PlannedStep", SimpleNamespace(cycle=cycle, graph=None, program=None))
        for cycle in (None, object())
    )
    with pytest.warns(UserWarning, match="eager PyTorch runs them, and may take more"):
        eager.take(inputs, on, [resident, resident])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eager.take(inputs, on, [resident])
    with pytest.raises(ProfilerOnError):
        eager.take(inputs, on, [resident, moved])
