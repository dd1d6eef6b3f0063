"""State that goes from one iteration to the next is seen: several are compared, and suspects are named."""

from __future__ import annotations

import itertools
import random
import re
import warnings

import memplan
import numpy as np
import pytest
import torch
from memplan.graphs.errors import DifferenceError
from memplan.guards.python_state import PythonState
from memplan.guards.reads.recorder import Recording
from memplan.model.iteration import Iteration, Updates
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare import comparison as comparing
from memplan.profiling.compare import eager, verdict
from memplan.profiling.compare.comparison import compare
from memplan.steps.execute import PlannedStep
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.trace import trace
from torch import nn
from torch.utils.checkpoint import checkpoint


def planned(iteration):
    program = trace(iteration)
    return PlannedStep(iteration, program, Schedule.of(compute(i) for i in range(len(program.operations))))


class Ramp(nn.Linear):
    """A number of Python's that counts the iterations."""

    step = 0

    def forward(self, x):
        self.step += 1
        return super().forward(x).square().mean() * min(1.0, self.step / 10)


class Stateful(nn.Module):
    """A hidden state that goes on."""

    def __init__(self):
        super().__init__()
        self.cell, self.h = nn.GRUCell(4, 4), torch.zeros(2, 4)

    def forward(self, x):
        h = self.cell(x, self.h)
        self.h = h.detach()
        return h.square().mean()


class PythonNumbers(nn.Linear):
    """Drops its input now and then."""

    def forward(self, x):
        return super().forward(x if random.random() < 0.5 else 2 * x).square().mean()


class NumpyNumbers(nn.Linear):
    def forward(self, x):
        mask = torch.from_numpy((np.random.rand(*x.shape) > 0.3).astype(np.float32))
        return super().forward(x * mask).square().mean()


class OwnGenerator(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.numbers = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x).square().mean() * float(self.numbers.random())


CASES = {
    "counter": (lambda: Ramp(4, 4), "uses module.step, which the iteration itself changes"),
    "random": (lambda: PythonNumbers(4, 4), "draws Python's random numbers"),
    "hidden state": (Stateful, r"uses module\.h, which the iteration itself changes"),
    "numpy": (lambda: NumpyNumbers(4, 4), "draws NumPy's random numbers"),
    "own generator": (OwnGenerator, "draws NumPy's random numbers"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_what_differs_each_time_is_refused_when_it_is_traced(case):
    make, words = CASES[case]
    module = make()
    iteration = Iteration(module, (torch.randn(2, 4),))
    before = PythonState(iteration, tensors=True)
    with pytest.raises(memplan.MemplanError, match=rf"test_carried.py:\d+: {words}"):
        planned(iteration)
    assert before.changes() == []


@pytest.fixture
def unseen(monkeypatch):
    """State that the trace does not see: that of code which reports nothing."""
    monkeypatch.setattr(Recording, "note_carried", lambda _self: None)


@pytest.mark.usefixtures("unseen")
def test_state_between_iterations_is_a_difference_with_suspects():
    words = "loss .*it changes module.h"
    torch.manual_seed(0)
    iteration = Iteration(Stateful(), (torch.randn(2, 4),))
    before = PythonState(iteration, tensors=True)
    comparison = compare(iteration, planned(iteration))
    assert not comparison.equal
    with pytest.raises(DifferenceError, match=words):
        raise DifferenceError(str(comparison))
    assert before.changes() == []


@pytest.mark.usefixtures("unseen")
def test_optimize_compares_too():
    iteration = Iteration(Stateful(), (torch.randn(2, 4),))
    before = iteration.module.h
    options = {"budget": "100%", "solver": "store-all", "cache": False}
    with pytest.raises(DifferenceError, match=r"it changes module\.h"):
        memplan.optimize(iteration.module, iteration.inputs, verify=True, **options)
    assert iteration.module.h is before
    step = memplan.optimize(iteration.module, iteration.inputs, **options)
    step(*iteration.inputs).backward()
    assert iteration.module.h is before
    with pytest.raises(DifferenceError, match=r"it changes module\.h"):
        step(*iteration.inputs)  # eager's second iteration reads what its first has left
    iteration.module.h = before
    step = memplan.optimize(
        iteration.module, iteration.inputs, budget="100%", solver="store-all", verify=False
    )
    assert step(*iteration.inputs).item() > 0


def test_optimize_says_that_it_did_not_compare(monkeypatch):
    monkeypatch.setattr(verdict, "available_bytes", lambda: 0)
    module, inputs = nn.Linear(4, 4), (torch.randn(2, 4),)
    with pytest.warns(UserWarning, match="not compared with eager PyTorch"):
        memplan.optimize(module, inputs, states=0, budget="100%", solver="store-all", loss_fn=torch.sum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {"budget": "100%", "solver": "store-all", "loss_fn": torch.sum, "states": 0}
        memplan.optimize(module, inputs, verify=False, **options)


class CountedTwice(nn.Module):
    """Plain PyTorch runs the batch norm of a checkpoint twice, and updates its statistics twice."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False).square().sum()


def test_checkpoints_that_change_results_are_told():
    iteration = Iteration(CountedTwice(), (torch.randn(5, 4),))
    comparison = compare(iteration, planned(iteration))
    assert comparison.equal
    assert comparison.checkpoints_off
    assert "without the model's own checkpoints" in str(comparison)


# ── devices whose kernels differ from run to run ────────────────────────────────────────────────────

ORDERS = itertools.count()


@torch.library.custom_op("memplan_tests::shaky_sum", mutates_args=())
def shaky_sum(x: torch.Tensor) -> torch.Tensor:
    """Over the rows, in an order that nobody chose, as atomics add."""
    rows = list(range(len(x)))
    random.Random(next(ORDERS)).shuffle(rows)
    total = torch.zeros_like(x[0])
    for row in rows:
        total = total + x[row]
    return total


@shaky_sum.register_fake
def _(x):
    return torch.empty_like(x[0])


torch.library.register_autograd(
    "memplan_tests::shaky_sum",
    lambda ctx, gradient: gradient.expand(ctx.rows, *gradient.shape).contiguous(),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "rows", len(inputs[0])),
)


class Shaky(nn.Module):
    """The shift changes nothing: its gradient is roundings alone, which Adam makes as large as any."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        scores = self.two(shaky_sum(self.one(x))) + self.shift
        return (scores - scores.mean()).square().mean()


def shaky(updates):
    torch.manual_seed(0)
    module = Shaky()
    adam = torch.optim.Adam(module.parameters(), 1e-2, foreach=False) if updates else None
    return Iteration(module, (torch.randn(64, 16),), updates=adam and Updates(adam))


@pytest.mark.parametrize("updates", [False, True])
def test_a_plan_of_kernels_that_differ_from_run_to_run_is_as_good_as_eager(updates):
    iteration = shaky(updates)
    comparison = compare(iteration, planned(iteration))
    assert comparison.equal, str(comparison)
    spreads = dict(comparison.spreads)
    assert spreads["shift" if updates else "shift.grad"] > 0
    assert 0 < spreads["loss"] < 1e-3
    assert re.search(
        r"\d+ tensors equal to eager, \d+ of them within its own differences from run to run: [\w. ]+ by \d",
        str(comparison),
    )


@pytest.mark.scripts
@pytest.mark.parametrize(("wrong", "by"), [("one.weight.grad", 1e-3), ("shift.grad", 1e-3)])
def test_a_plan_that_is_wrong_beyond_that_is_wrong(monkeypatch, wrong, by):
    iteration = shaky(updates=False)
    step = planned(iteration)
    run = step.run

    def off(inputs):
        outcome = run(inputs)
        outcome.gradients[wrong.removesuffix(".grad")].add_(by)
        return outcome

    monkeypatch.setattr(step, "run", off)
    comparison = compare(iteration, step)
    assert not comparison.equal


@pytest.mark.parametrize(
    ("own", "ours", "equal"),
    [(1e-6, 1e-6, True), (1e-6, 1e-3, False), (0.1, 0.1, False), (0.0, 1e-6, False)],
    ids=["alike", "more than its own", "no rounding", "eager is steady"],
)
def test_differences_of_eager_with_itself_count_as_equal(monkeypatch, own, ours, equal):
    """own: by how much eager differs from run to run. ours: the plan from eager."""
    iteration = Iteration(nn.Linear(4, 4), (torch.randn(2, 4),), torch.sum)
    step, run_eager, runs = planned(iteration), eager.run_eager, []

    def shaky(given, *sums, **last):
        runs.append(1)
        outcome = run_eager(given, *sums, **last)
        noise = ours + own * (len(runs) // comparing.ITERATIONS % 2)
        gradients = {name: gradient + noise for name, gradient in outcome.gradients.items()}
        return outcome._replace(gradients=gradients)

    monkeypatch.setattr(comparing, "run_eager", shaky)
    comparison = compare(iteration, step)
    assert comparison.equal == equal
    if equal:
        assert comparison.spread == pytest.approx(own, rel=0.3)
        assert "within its own differences from run to run" in str(comparison)


TRAINING: dict[str, torch.optim.Optimizer] = {}


class Global(Stateful):
    """Its script's optimizer is a global of its code's."""

    def forward(self, x):
        return super().forward(x) * (2.0 if len(TRAINING) > 1 else 1.0)


@pytest.mark.usefixtures("unseen")
def test_an_optimizer_that_code_reaches_is_no_suspect(monkeypatch):
    """Its step has changed it, and the keys of its states are the weights, whose text is long."""
    module = Global()
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    monkeypatch.setitem(TRAINING, "optimizer", optimizer)
    iteration = Iteration(module, (torch.randn(2, 4),), updates=Updates(optimizer, "after"))
    found = compare(iteration, planned(iteration))
    assert found.suspects == ("it changes module.h",)
    state = PythonState(iteration, tensors=True)
    optimizer.state[next(module.parameters())] = {}
    assert any(change.endswith(".state.<Parameter>") for change in state.changes())


class Physics(nn.Module):
    """A network that solves an equation: its loss has derivatives with respect to the batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_(True)
        return (torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)[0].sum(1) - 1).square().mean()


def test_a_batch_that_forward_makes_require_a_gradient():
    """Eager PyTorch writes `.grad` of the batch, a plan does not; the batch is afterwards as before."""
    x = torch.randn(8, 2)
    iteration = Iteration(Physics(), (x,))
    assert compare(iteration, planned(iteration)).equal
    assert (x.requires_grad, x.grad) == (False, None)


def test_derivatives_of_a_batch_that_requires_no_gradient_have_advice():
    module = Physics()
    module.forward = lambda x: torch.autograd.grad(module.layers(x).sum(), x, create_graph=True)[0].mean()
    with pytest.raises(TraceError, match=r"does not require grad.*x = x.detach\(\).requires_grad_\(True\)"):
        planned(Iteration(module, (torch.randn(8, 2),)))
