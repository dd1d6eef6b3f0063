"""One step for batches of any shape: the same weights as in plain PyTorch's loop, bit by bit."""

from __future__ import annotations

import copy
import gc
import weakref

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from torch import nn
from torch.nn import functional

LENGTHS = (64, 64, 40, 64, 24, 40, 64)
"""Of the batches: three shapes, the first again behind the others."""


def model() -> nn.Module:
    """A residual of wide layers: what backward needs is more than the weights. Draws random numbers."""
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(4)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.LayerNorm(16), nn.Linear(16, 3))


def batches(lengths=LENGTHS):
    torch.manual_seed(7)
    return [(torch.randn(length, 6), torch.randint(3, (length,))) for length in lengths]


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def trained_plainly(module, optimizer, given):
    torch.manual_seed(11)
    losses = []
    for x, labels in given:
        loss = functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def assert_same(module, baseline, losses, expected):
    assert all(torch.equal(own, theirs) for own, theirs in zip(losses, expected, strict=True))
    for (name, own), theirs in zip(module.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(own, theirs), name


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("planned_updates", [False, True], ids=["gradients", "updates"])
@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
def test_batches_of_any_shape_train_as_plain_pytorch(planned_updates: bool, moved: bool) -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, given = adamw(module), batches()
    x, labels = given[0]
    step = memplan.optimize(
        module,
        x,
        targets=labels,
        loss_fn=functional.cross_entropy,
        budget="65%",
        optimizer=optimizer if planned_updates else None,
        machine=Machine(links=Links(1e9, 1e9)) if moved else None,
        solver="joint" if moved else "rockmate",
        time_limit=0.5,
    )
    torch.manual_seed(11)
    losses = []
    for x, labels in given:
        losses.append(step(x, targets=labels))
        if not planned_updates:
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(step.plans) == 3
    assert_same(module, baseline, losses, trained_plainly(baseline, adamw(baseline), given))


def small_step(**options):
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    (x, labels), *_others = batches()
    given = {"targets": labels, "loss_fn": functional.cross_entropy, "budget": "100%", "solver": "rotor"}
    return memplan.optimize(module, x, **(given | options))


def test_each_shape_is_planned_once_within_the_same_bytes() -> None:
    step = small_step()
    first = step.plans[0]
    for x, labels in batches((64, 20, 64, 20, 20)):
        torch.autograd.grad(step(x, targets=labels), first.parameters(["0.bias"]))
    assert len(step.plans) == 2
    assert step.plans[1] is first
    assert len({plan.budget for plan in step.plans}) == 1


@pytest.mark.scripts
def test_beyond_the_limit_the_plan_used_least_recently_goes() -> None:
    step = small_step(max_plans=2)
    (x, labels), (y, more), (z, most) = batches((64, 20, 10))
    parameters = step.plans[0].parameters(["0.bias"])
    torch.autograd.grad(step(y, targets=more), parameters)
    torch.autograd.grad(step(x, targets=labels), parameters)
    first, second = step.plans
    with pytest.warns(UserWarning, match="more shapes, values or modes than max_plans=2: .* max_plans=4"):
        torch.autograd.grad(step(z, targets=most), parameters)
    assert step.plans[1] is first
    assert second not in step.plans
    gone = weakref.ref(second)
    del second
    gc.collect()
    assert gone() is None
    torch.autograd.grad(step(x, targets=labels), parameters)
    assert step.plans[0] is first


@pytest.mark.scripts
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("planned_updates", [False, True], ids=["gradients", "updates"])
def test_plans_that_go_leave_offloaded_weights_to_those_that_come(most: int, planned_updates: bool) -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, given = adamw(module), batches((64, 40, 24, 64, 24, 40))
    x, labels = given[0]
    step = memplan.optimize(
        module,
        x,
        targets=labels,
        loss_fn=functional.cross_entropy,
        budget="60%",
        optimizer=optimizer if planned_updates else None,
        machine=Machine(links=Links(1e9, 1e9)),
        solver="joint",
        time_limit=0.5,
        max_plans=most,
        verify=False,
    )
    torch.manual_seed(11)
    losses = []
    for x, labels in given:
        losses.append(step(x, targets=labels))
        assert len(step.plans) <= most
        if not planned_updates:
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    step.restore_to_device()
    assert_same(module, baseline, losses, trained_plainly(baseline, adamw(baseline), given))


def test_where_no_plan_can_be_made_the_one_that_was_to_go_stays() -> None:
    step = small_step(max_plans=1)
    (x, labels), (y, more) = batches((64, 640))
    (first,) = step.plans
    with pytest.raises(memplan.InfeasibleError):
        step(y, targets=more)
    assert step.plans == [first]
    assert torch.isfinite(step(x, targets=labels))


def test_an_input_that_is_missing_gets_no_plan() -> None:
    (_x, labels), *_ = batches((20,))
    step = small_step()
    with pytest.raises(memplan.MismatchError, match="missing"):
        step(targets=labels)
    assert len(step.plans) == 1


def test_an_input_of_a_type_that_eager_does_not_take_gets_no_plan() -> None:
    (x, labels), *_ = batches((20,))
    step = small_step()
    with pytest.raises(memplan.MemplanError, match="mat1 and mat2 must have the same dtype"):
        step(x.double(), targets=labels)
    assert len(step.plans) == 1


def test_a_larger_shape_that_does_not_fit_is_refused_and_the_others_go_on() -> None:
    step = small_step()
    (x, labels), (y, more) = batches((64, 640))
    with pytest.raises(memplan.InfeasibleError):
        step(y, targets=more)
    assert torch.isfinite(step(x, targets=labels))
    assert len(step.plans) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_plans": 0}, "max_plans=0: give a whole number, 1 or more"),
        ({"max_plans": 2.5}, "max_plans=2.5"),
        ({"machine": "rtx306"}, "no GPU or machine named 'rtx306' is known.*rtx3060"),
        ({"machine": "there-is-none.yaml"}, "there-is-none.yaml"),
    ],
)
def test_wrong_arguments_are_named(wrong, message) -> None:
    with pytest.raises(memplan.InputError, match=message):
        small_step(**wrong)


@pytest.mark.scripts
def test_an_example_given_twice_is_two_inputs_in_other_batches() -> None:
    """As input and as target; a later batch has another target."""
    module, (x, other) = nn.Linear(6, 6), torch.randn(2, 8, 6)
    chosen = {"loss_fn": functional.mse_loss, "budget": "100%", "solver": "store-all"}
    step = memplan.optimize(module, x, targets=x, **chosen)
    for first, second in ((x, other), (other, x), (other, other)):
        expected = functional.mse_loss(module(first), second)
        loss = step(first, targets=second)
        loss.backward()
        assert torch.equal(loss, expected)
