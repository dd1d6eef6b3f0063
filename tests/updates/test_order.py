"""Weights that forward itself changes, or that lie in one memory, are trained as eager PyTorch trains them.

    forward reads w ─▶ w.clamp_(…) ─▶ … ─▶ backward ─▶ the clamped w is written back ─▶ w's update

The oracle is a loop of eager PyTorch on the same weights. Nothing is compared by `optimize`, so the order of
writes is the program's own.
"""

from __future__ import annotations

from dataclasses import replace

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError, MismatchError
from memplan.graphs.machine import Links, Machine
from memplan.model.iteration import Iteration, Updates
from memplan.tracing.trace import trace
from memplan.updates.order import check_order
from memplan.updates.updates import updates_weights
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x))))).square().mean()


class Clamp(Base):
    def forward(self, x):
        with torch.no_grad():
            self.b.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Scale(Base):
    def forward(self, x):
        self.c.weight.data.mul_(0.9)
        return super().forward(x)


class Centre(Base):
    """Gives the weight other memory."""

    def forward(self, x):
        self.b.weight.data = self.b.weight.data - self.b.weight.data.mean() + 0.01
        return super().forward(x)


class Renormalised(Base):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 16, max_norm=0.5)

    def forward(self, x):
        return super().forward(x + self.table(torch.arange(4)).sum(0))


class Late(Base):
    """The change is made after the last use."""

    def forward(self, x):
        loss = super().forward(x)
        with torch.no_grad():
            self.a.weight.mul_(0.9)
        return loss


class Shared(Base):
    """Two parameters, one memory."""

    def __init__(self):
        super().__init__()
        self.c.weight = nn.Parameter(self.a.weight.data)


class Flat(Base):
    """One memory, apart."""

    def __init__(self):
        super().__init__()
        flat = torch.randn(512) * 0.2
        self.a.weight = nn.Parameter(flat[:256].view(16, 16))
        self.c.weight = nn.Parameter(flat[256:].view(16, 16))

    def forward(self, x):
        with torch.no_grad():
            self.c.weight.clamp_(-0.3, 0.3)
        return super().forward(x)


MODELS = (Clamp, Scale, Centre, Renormalised, Late, Shared, Flat)
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, 0.9, weight_decay=0.1, foreach=False),
}
MACHINE = Machine(host_capacity=2**24, links=Links(d2h=1e9, h2d=1e9))
WAYS = [
    {},
    {"update": "after"},
    {"max_grad_norm": 0.1},
    {"gradient_accumulation_steps": 2},
    {"machine": MACHINE},
    {"rollback_on_error": True},
]
BATCHES = [torch.randn(32, 16, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def fresh(model, optimizer="adamw"):
    torch.manual_seed(0)
    module = model()
    return module, OPTIMIZERS[optimizer](module.parameters())


def trained_eagerly(model, name, gradient_accumulation_steps=1, max_grad_norm=None):
    module, optimizer = fresh(model, name)
    for number, x in enumerate(BATCHES, start=1):
        (module(x) / gradient_accumulation_steps).backward()
        if number % gradient_accumulation_steps == 0:
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
    return module.state_dict()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)) or "in-backward")
@pytest.mark.parametrize("model", MODELS)
def test_weights_are_those_of_an_eager_loop(model, way):
    name = "momentum" if "gradient_accumulation_steps" in way else "adamw"
    module, optimizer = fresh(model, name)
    budget = "99%" if "machine" in way else "100%"
    step = memplan.optimize(
        module,
        BATCHES[0],
        budget=budget,
        optimizer=optimizer,
        verify=False,
        cache=False,
        time_limit=1,
        **way,
    )
    for x in BATCHES:
        step(x)
    step.restore_to_device()
    wanted = {key: way[key] for key in ("gradient_accumulation_steps", "max_grad_norm") if key in way}
    for key, tensor in trained_eagerly(model, name, **wanted).items():
        assert torch.equal(tensor, module.state_dict()[key]), key


@pytest.mark.parametrize("model", [Clamp, Centre, Renormalised, Shared])
def test_the_comparison_agrees(model):
    module, optimizer = fresh(model)
    memplan.optimize(
        module, BATCHES[0], budget="100%", optimizer=optimizer, ema=0.9 if model is not Shared else None
    )


@pytest.mark.scripts
def test_shared_weights_are_shared_in_the_plan_of_another_shape():
    """Made while both parameters are on the host."""
    module, optimizer = fresh(Shared)
    step = memplan.optimize(
        module, BATCHES[0], budget="80%", optimizer=optimizer, cache=False, machine=MACHINE, time_limit=1
    )
    other, eager = fresh(Shared)
    for x in (BATCHES[0], BATCHES[1][:20], BATCHES[2], BATCHES[3][:20]):
        step(x)
        other(x).backward()
        eager.step()
        eager.zero_grad()
    step.restore_to_device()
    for key, tensor in other.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[key]), key
    assert module.a.weight.data_ptr() == module.c.weight.data_ptr()


# ── the rule itself ─────────────────────────────────────────────────────────────────────────────────


def test_a_program_in_another_order_is_refused():
    module, optimizer = fresh(Clamp)
    program = trace(Iteration(module, (BATCHES[0],), updates=Updates(optimizer)))
    check_order(program)
    changes = [place for place, one in enumerate(program.operations) if "copy_" in one.name]
    update = next(place for place, one in enumerate(program.operations) if one.name == "b.weight/update")
    assert len(changes) == 1
    assert changes[0] < update
    assert updates_weights(program.operations[update])
    operations = list(program.operations)
    operations.insert(changes[0], operations.pop(update))
    line = "copy_ uses b.weight after b.weight/update: an update comes after every other use"
    with pytest.raises(MismatchError, match=line):
        check_order(replace(program, operations=operations))


class SharedAndClamped(Shared):
    def forward(self, x):
        with torch.no_grad():
            self.a.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class HeldElsewhere(Base):
    def __init__(self):
        super().__init__()
        self.same = self.a.weight.data

    def forward(self, x):
        return super().forward(x @ self.same)


class Reshaped(Base):
    def forward(self, x):
        self.b.weight.data = self.b.weight.data[:, :8]
        return self.b(x[:, :8]).square().mean()


class LowPrecision(Clamp):
    def __init__(self):
        super().__init__()
        self.to(torch.bfloat16)


@pytest.mark.parametrize(
    ("model", "options", "line"),
    [
        (SharedAndClamped, {}, r"a\.weight and c\.weight lie in one memory, and forward changes it in place"),
        (Shared, {"ema": 0.9}, r"ema: a\.weight and c\.weight are two parameters in one memory"),
        (HeldElsewhere, {}, r"module\.same lies in the memory of a\.weight, which an iteration changes"),
        (
            Reshaped,
            {},
            r"test_order\.py:\d+: forward gives b\.weight the form torch.float32 \[16, 8\]",
        ),
        (LowPrecision, {"master_weights": True}, r"master_weights=True: forward changes b\.weight in place"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_can_not_be_ordered_is_refused_by_its_cause(model, options, line):
    module, optimizer = fresh(model)
    x = BATCHES[0].to(next(module.parameters()).dtype)
    with pytest.raises(memplan.MemplanError, match=line) as refused:
        memplan.optimize(module, x, budget="100%", optimizer=optimizer, cache=False, **options)
    assert isinstance(refused.value, InputError) or model is Reshaped


def test_the_advice_for_shared_weights_works():
    module, _ = fresh(SharedAndClamped)
    module.c.weight = module.a.weight
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    memplan.optimize(module, BATCHES[0], budget="100%", optimizer=optimizer, ema=0.9, cache=False)
