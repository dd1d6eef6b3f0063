"""What `optimize` says of eager PyTorch: that it takes less than the baseline, or differs from run to run.

A plan that is worse in memory and in time is refused; one that is better in either is not, whatever else the
machine does.
"""

from __future__ import annotations

import threading
import warnings
from itertools import groupby

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.profiling.compare import cost
from memplan.profiling.compare.comparison import ITERATIONS
from memplan.profiling.compare.cost import Cost, below_baseline, is_slower, worse_in_both
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(6)
        )

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()


class Plain(Checkpointed):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


X = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))


def said(module, x=X, **options):
    """What `optimize` and the first batches warn of, and the step."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        options = {"budget": "100%", "cache": False, "time_limit": 1} | options
        step = memplan.optimize(module, x, **options)
        for _batch in range(ITERATIONS):
            step(x).backward()
    return [str(each.message) for each in found if issubclass(each.category, UserWarning)], step


def eager_peak(module):
    """By hand: what an iteration takes above weights and batch, and these."""

    def run():
        module(X).backward()
        module.zero_grad()

    run()
    there = sum(parameter.nbytes for parameter in module.parameters()) + X.nbytes
    return there + live_peak(run).peak_bytes


@pytest.mark.scripts
def test_a_model_with_checkpoints_of_its_own_takes_less_than_the_baseline(monkeypatch):
    monkeypatch.setattr("memplan.training.plans.verification.worse_than_eager", lambda *_, **_named: None)
    module = Checkpointed()
    lines, step = said(module)
    (line,) = [line for line in lines if "of the baseline" in line]
    outside = step._executor.planner.outside.bytes
    assert line.startswith(f"eager PyTorch takes {eager_peak(module) + outside:,} B")
    assert f"of the baseline of {step.plan.figures.peak + outside:,} B" in line
    assert said(Plain(), states=0)[0] == []


SLOW = [(1.0, 1.2)] * 6 + [(1.0, 0.9)]
"""Rounds of a plan that is slow in all but one: seconds of eager, of the plan."""


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("verify", [None, True], ids=["at the first batch", "before"])
def test_a_plan_that_is_worse_in_both_is_refused(monkeypatch, verify):
    """Eager takes less by its checkpoints; and less time, as if the plan were slow."""
    monkeypatch.setattr(cost, "windows", lambda *_, **_named: zip(*SLOW, strict=True))
    line = r"worse than eager PyTorch in both memory and time: .* give a budget below (?P<bytes>[\d,]+) bytes"
    module = Checkpointed()
    with pytest.raises(memplan.MemplanError, match=line) as refused:
        memplan.optimize(module, X, budget="100%", cache=False, time_limit=1, verify=verify)(X)
    below = int(refused.value.args[0].rpartition("below ")[2].split()[0].replace(",", "")) - 1
    assert f"eager {below + 1:,} B" in str(refused.value)
    step = said(Checkpointed(), budget=below)[1]
    assert below + 1 == eager_peak(module) + step._executor.planner.outside.bytes
    assert step.plan.figures.peak < eager_peak(module)
    assert said(Plain(), states=0)[0] == []


@pytest.mark.parametrize(
    ("rounds", "slower"),
    [
        (SLOW, True),
        ([(1.0, 1.2)] * 5 + [(1.0, 0.9)] * 2, False),
        ([(1.0, 1.06)] * 7, False),
        ([(1.0, 0.9)] * 7, False),
    ],
)
def test_one_that_is_slower_now_and_then_is_not(rounds, slower):
    eager, plan = zip(*rounds, strict=True)
    assert is_slower(plan, eager) is slower


@pytest.mark.scripts
def test_new_shapes_of_a_training_that_runs_are_not_refused(monkeypatch):
    module = Checkpointed()
    _, step = said(module, budget=eager_peak(module) - 1, states=0, gradients="freed")
    monkeypatch.setattr("memplan.training.plans.verification.worse_than_eager", lambda *_, **_named: "worse")
    step(X[:100]).backward()


@pytest.mark.scripts
def test_noise_makes_no_plan_worse():
    """Other threads keep the cores busy: a plan as fast as eager stays accepted."""
    over, ones = threading.Event(), torch.ones(100, 100)

    def busy():
        while not over.is_set():
            ones.mm(ones)

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            said(Checkpointed())
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("plan", "eager", "is_worse"),
    [
        ((1000, 1.0), Cost(900, 0.8), True),
        ((1000, 1.0), Cost(900, 1.0), False),
        ((1000, 1.0), Cost(1000, 0.5), False),
        ((1000, 1.0), Cost(995, 0.5), False),
        ((800, 2.0), Cost(900, 0.5), False),
        ((2000, 0.5), Cost(900, 0.6), False),
    ],
)
def test_only_worse_in_both_is_worse(plan, eager, is_worse):
    assert (worse_in_both(*plan, eager=eager) is not None) == is_worse


def test_a_budget_that_no_plan_can_have_is_not_advised():
    for least, advised in ((899, True), (900, False), (2000, False)):
        line = worse_in_both(1000, 1.0, Cost(900, 0.8), 50, least)
        assert line is not None
        assert ("or give a budget below 950 bytes" in line) == advised


def test_below_the_baseline_is_by_more_than_a_rounding():
    assert below_baseline({"peak": 951}, 1000) is None
    assert "95% of the baseline" in (below_baseline({"peak": 950}, 1000) or "")
    assert below_baseline({}, 1000) is None


class FromRunToRun(nn.Module):
    """Differs by a rounding, as sums over threads do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return _Unsteady.apply(self.layer(x)).square().mean()


class _Unsteady(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(_ctx, x):
        if isinstance(x, torch._subclasses.FakeTensor):
            return x * 1.0
        _Unsteady.calls += 1
        return x * (1.0 + 1.2e-7 * (_Unsteady.calls % 4))

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


@pytest.mark.scripts
def test_operations_that_differ_from_run_to_run_are_told():
    lines, _ = said(FromRunToRun())
    (line,) = [line for line in lines if "from run to run" in line]
    assert line.startswith(
        "equal to eager PyTorch within what that differs from itself from run to run: up to "
    )


@pytest.mark.scripts
def test_they_are_told_at_each_start(tmp_path):
    for _ in range(2):
        lines, _step = said(FromRunToRun(), cache=tmp_path)
        assert any("from run to run" in line for line in lines)


@pytest.mark.scripts
def test_rounds_take_turns(monkeypatch):
    """So that what else the machine does meets both."""
    module, order = Checkpointed(), []
    monkeypatch.setattr(cost, "run_eager", lambda _iteration: order.append("eager"))
    monkeypatch.setattr("memplan.training.plans.verification.worse_than_eager", lambda *_, **_named: None)
    _, step = said(module)
    plan = step.plans[0]
    monkeypatch.setattr(plan, "run", lambda _inputs: order.append("plan"))
    iteration = step._executor.iteration._replace(inputs=(X,))
    cost.worse_than_eager(iteration, plan, 2**30, Cost(1, 1.0))
    assert [name for name, _calls in groupby(order)] == ["eager", "plan"] * 3
