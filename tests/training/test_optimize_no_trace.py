"""`optimize` leaves no trace, whatever it says: what the iterations that it runs change is put back.

Each model changes something of its own in forward; the digest is taken of everything (no_trace.py).
"""

from __future__ import annotations

import random
import signal

import memplan
import numpy as np
import pytest
import torch
from memplan.guards.saved import SavedTensor, elements_of
from memplan.guards.unchanged import unchanged
from memplan.model.iteration import Iteration, Updates
from memplan.profiling.compare import batch, comparison, eager
from no_trace import differences, digest
from not_none import not_none
from torch import nn

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.extend()

    def extend(self):
        pass

    def change(self, x):
        return x

    def forward(self, x):
        return self.b(torch.tanh(self.a(self.change(x)))).square().mean()


class Counter(Base):
    """In a frozen parameter."""

    def extend(self):
        self.count = nn.Parameter(torch.zeros(1), requires_grad=False)

    def change(self, x):
        with torch.no_grad():
            self.count += 1
        return x


class Clamped(Base):
    def change(self, x):
        self.a.weight.data.clamp_(-0.1, 0.1)
        return x


class OtherMemory(Base):
    def change(self, x):
        self.a.weight.data = self.a.weight.data - self.a.weight.data.mean()
        return x


class Momentum(Base):
    """A key encoder that follows the query's, as in MoCo."""

    def extend(self):
        self.key = nn.Linear(16, 16).requires_grad_(False)

    def change(self, x):
        with torch.no_grad():
            self.key.weight.mul_(0.9).add_(self.a.weight, alpha=0.1)
        return x + self.key(x)


class Renormalised(Base):
    def extend(self):
        self.table = nn.Embedding(4, 16, max_norm=0.5)

    def change(self, x):
        return x + self.table(torch.tensor([0, 2])).sum(0)


class Statistics(Base):
    def extend(self):
        self.norm = nn.BatchNorm1d(16)

    def change(self, x):
        return self.norm(self.a(x))


class EverySecond(Base):
    """Changes a weight in every second call: in the trace it does not."""

    def extend(self):
        self.calls = 0

    def change(self, x):
        self.calls += 1
        if self.calls % 2 == 0:
            self.a.weight.data.mul_(0.5)
        return x


class Own(Base):
    """Writes into its batch."""

    def change(self, x):
        return x.mul_(1.5)


class PythonNumbers(Base):
    def change(self, x):
        return x if random.random() < 0.5 else x * 2


class NumpyNumbers(Base):
    def change(self, x):
        return x * float(np.random.rand())


class Dropped(Base):
    def change(self, x):
        return nn.functional.dropout(x, 0.5)


class Asks(Base):
    """Can't be traced: its code depends on a weight, which it changes before."""

    def change(self, x):
        self.a.weight.data.mul_(0.5)
        return x if self.a.weight.sum() > 0 else -x


class Frees(Base):
    """Changes whether a weight is trained."""

    def change(self, x):
        self.b.bias.requires_grad_(False)
        return x


MODELS = (
    *(Counter, Clamped, OtherMemory, Momentum, Renormalised, Statistics, EverySecond, Own, PythonNumbers),
    *(NumpyNumbers, Dropped, Asks, Frees),
)


def made(model, name):
    torch.manual_seed(0)
    module = model()
    if name is None:
        return module, None
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return module, kinds[name](module.parameters(), lr=0.1, **({"momentum": 0.9} if name == "sgd" else {}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", [None, "adamw"])
@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_changed_accepted_or_refused(model, optimizer):
    module, optimizer = made(model, optimizer)
    batch = X.clone()
    iteration = Iteration(module, (batch,), updates=optimizer and Updates(optimizer))
    options = {} if optimizer is None else {"optimizer": optimizer}
    before, refusal = digest(iteration), ""
    try:
        memplan.optimize(module, batch, budget="100%", cache=False, time_limit=1, **options)
    except memplan.MemplanError as error:
        refusal = str(error)
    if refusal:
        assert model in (EverySecond, Own, PythonNumbers, NumpyNumbers, Asks, Frees), refusal
    else:
        assert model not in (EverySecond, NumpyNumbers, Asks)
    assert differences(before, digest(iteration)) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [{"ema": 0.9}, {"master_weights": True}, {"gradient_accumulation_steps": 2}, {"max_grad_norm": 0.1}],
)
def test_states_are_the_same_objects_in_the_midst_of_training(options):
    """Planned for another shape: masters and averages are there already, and only there."""
    module, optimizer = made(Clamped if "master_weights" not in options else Base, "adamw")
    batch = X
    if "master_weights" in options:
        module, batch = module.to(torch.bfloat16), X.to(torch.bfloat16)
    step = memplan.optimize(
        module, batch, budget="100%", cache=False, time_limit=1, optimizer=optimizer, **options
    )
    step(batch)
    step.restore_to_device()
    iteration = Iteration(module, (batch,), updates=Updates(not_none(optimizer)))
    before = digest(iteration)
    with torch.random.fork_rng():
        step._executor.plans.serving((batch[:5],))
    assert differences(before, digest(iteration)) == []


@pytest.mark.scripts
def test_the_first_evaluation_and_another_shape_count_once():
    module, _ = made(Counter, None)
    step = memplan.optimize(module, X, budget="100%", cache=False, time_limit=1)
    for number, call in enumerate([step, step.evaluate, lambda x: step(x[:5]), step], start=1):
        call(X)
        assert module.count.item() == number


@pytest.mark.sampled(1)
@pytest.mark.parametrize("verify", [None, True], ids=["first batch", "before"])
def test_a_counter_that_is_not_compared_equal_is_told(verify):
    """Eager changes a frozen weight that the trace leaves alone: that is a difference of its own."""

    class Grows(Base):
        def extend(self):
            self.count = nn.Parameter(torch.zeros(1), requires_grad=False)

        def change(self, x):
            if type(x) is torch.Tensor:  # a trace has tensors without data, of another type
                self.count.data.add_(1)
            return x

    with pytest.raises(memplan.MemplanError, match="count differs from eager"):
        memplan.optimize(Grows(), X, budget="100%", cache=False, time_limit=1, verify=verify)(X)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("when", "verify"), [(2, True), (4, True), (6, True), (2, None)], ids=[2, 4, 6, "first batch"]
)
def test_ctrl_c_while_it_compares(when, verify, monkeypatch):
    """A second one, while things are put back, does not break that off."""
    module, optimizer = made(Momentum, "adamw")
    iteration = Iteration(module, (X,), updates=Updates(not_none(optimizer)))
    before, calls = digest(iteration), []

    class Interrupting(SavedTensor):
        def put_back(self):
            signal.raise_signal(signal.SIGINT)
            super().put_back()

    def run_eager(*arguments, **keywords):
        made = original(*arguments, **keywords)
        calls.append(1)
        if len(calls) == when // 2:
            signal.raise_signal(signal.SIGINT)
        return made

    original = eager.run_eager
    for file in (comparison, batch):
        monkeypatch.setattr(file, "run_eager", run_eager)
    monkeypatch.setattr("memplan.guards.unchanged.SavedTensor", Interrupting)
    options = {"budget": "100%", "cache": False, "time_limit": 1, "verify": verify}
    with pytest.raises(KeyboardInterrupt):
        memplan.optimize(module, X, optimizer=optimizer, **options)(X)
    assert differences(before, digest(iteration)) == []


class TrainedLoss(nn.Module):
    """Has a weight, which a padded batch is compared with before anything is traced."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, output):
        return (output * self.weight).square().mean()


def test_gradients_of_a_loss_function_are_not_left():
    module, loss = nn.Linear(16, 16), TrainedLoss()
    with pytest.raises(memplan.MemplanError, match="uses loss_fn, a module that is no part of"):
        memplan.optimize(module, X, loss_fn=TrainedLoss(), budget="100%", cache=False)
    loss.weight.grad = there = torch.ones(16)
    iteration = Iteration(module, (X,), loss)
    with unchanged(iteration, torch.device("cpu")):
        eager.run_eager(iteration)
        assert loss.weight.grad is not there
    assert loss.weight.grad is there
    assert torch.equal(there, torch.ones(16))


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_graph_of_the_user_s_goes_on_after_it():
    torch.manual_seed(0)
    generator, critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)
    fake = generator(torch.randn(4, 8))
    pending = critic(fake).mean()
    step = memplan.optimize(critic, fake.detach(), loss_fn=lambda output: output.mean(), budget="100%")
    step(fake.detach()).backward()
    assert fake._version == 0
    pending.backward(retain_graph=True)
    critic(fake).mean().backward()


def test_a_graph_through_the_weights_goes_on_after_updates_were_compared():
    """They were made and taken back: the weights have the bits that autograd has saved."""
    module, optimizer = made(Base, "adamw")
    x = X.clone().requires_grad_()
    loss = module(x)
    memplan.optimize(module, X, budget="100%", optimizer=optimizer, cache=False, time_limit=1)
    loss.backward()
    assert x.grad is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("train", [True, False])
def test_an_input_that_requires_a_gradient_is_refused_as_a_step_refuses_it(train):
    module, _ = made(Base, None)
    needy = X.clone().requires_grad_()
    line = "input 0 requires a gradient, which a step does not compute: call memplan.optimize_module"
    with pytest.raises(memplan.MemplanError, match=line):
        memplan.optimize(module, needy, budget="100%", cache=False)
    step = memplan.optimize(module, X, budget="100%", cache=False, time_limit=1)
    if train:
        with pytest.raises(memplan.MemplanError, match=line):
            step(needy)
    else:
        assert torch.equal(step.evaluate(needy).loss, module(X).detach())


OVERLAPPING = {
    "rows": lambda: torch.randn(1, 16).expand(8, 16),
    "number": lambda: torch.randn(()).expand(8, 16),
    "windows": lambda: torch.randn(23).unfold(0, 16, 1),
    "columns": lambda: torch.randn(8, 32)[:, ::2],
    "reversed": lambda: torch.randn(16, 8).t(),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_batches_with_overlapping_rows_are_trained_on(kind):
    torch.manual_seed(0)
    batch, module = OVERLAPPING[kind](), Statistics()
    step = memplan.optimize(module, batch, budget="100%", cache=False, time_limit=1)
    loss = step(batch)
    loss.backward()
    found = [not_none(p.grad).clone() for p in module.parameters()]
    module.zero_grad()
    other = module(batch)
    other.backward()
    assert torch.equal(loss, other)
    assert all(map(torch.equal, found, (not_none(p.grad) for p in module.parameters())))


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_what_forward_writes_into_overlapping_memory_is_put_back(kind):
    torch.manual_seed(0)
    tensor = OVERLAPPING[kind]()
    known, bytes_ = tensor.clone(), tensor.untyped_storage().tolist()
    saved = SavedTensor(tensor)
    assert not saved.has_changed()
    elements_of(tensor).add_(1)
    assert saved.has_changed()
    saved.put_back()
    assert not saved.has_changed()
    assert torch.equal(tensor, known)
    assert tensor.untyped_storage().tolist() == bytes_
    assert tensor._version == 0
