"""What a loop sets while it trains: frozen layers, modes, rates, dtypes, autocast, and losses that wait.

Followed by another plan, bitwise eager PyTorch's loop, or refused with the call that helps.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.training.plans.plan import Planner
from torch import Tensor, nn
from torch.nn import functional

BUDGET = 60_000
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(6) % 4
LINKS = Machine(links=Links(1e9, 1e9))
AUTOCAST = torch.autocast("cpu", torch.bfloat16)


class Smoothed(nn.Module):
    """A loss whose smoothing may change."""

    def __init__(self) -> None:
        super().__init__()
        self.smoothing = 0.1

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.float(), targets, label_smoothing=self.smoothing)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def rprop(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Rprop(module.parameters(), lr=0.01)


def planned(module: nn.Module, loss: nn.Module, **options: Any) -> Any:
    given: dict[str, Any] = {"budget": BUDGET, "cache": False, "progress": False, "time_limit": 2.0}
    return memplan.optimize(module, X, targets=CLASSES, loss_fn=loss, **given | options)


def frozen(module: nn.Module, _loss: nn.Module, iteration: int) -> None:
    module[0].requires_grad_(iteration not in (2, 3))  # pyright: ignore


def frozen_to_the_end(module: nn.Module, _loss: nn.Module, iteration: int) -> None:
    module[0].requires_grad_(iteration < 2)  # pyright: ignore


def unfrozen(module: nn.Module, _loss: nn.Module, iteration: int) -> None:
    module[0].requires_grad_(iteration > 1)  # pyright: ignore


def dropout(module: nn.Module, _loss: nn.Module, iteration: int) -> None:
    module[2].p = 0.1 * (1 + iteration // 2)  # pyright: ignore


def smoothing(_module: nn.Module, loss: nn.Module, iteration: int) -> None:
    loss.smoothing = 0.1 * (iteration // 2)  # pyright: ignore


def mode_of_a_part(module: nn.Module, _loss: nn.Module, iteration: int) -> None:
    module[2].train(iteration not in (2, 3))  # pyright: ignore


def nothing(_module: nn.Module, _loss: nn.Module, _iteration: int) -> None:
    pass


FROZEN = r"0.weight.requires_grad is (True|False); the plan is for (True|False); another plan is made$"
FOLLOWED = {
    "frozen": (frozen, FROZEN),
    "unfrozen": (unfrozen, FROZEN),
    "dropout": (dropout, r"2.p is 0.2; the plan is for 0.1; another plan is made. Give what changes often"),
    "smoothing": (smoothing, r"smoothing is 0.1; the plan is for 0.0; another plan is made. Give what"),
    "mode of a part": (mode_of_a_part, r"2.training is False; the plan is for True; another plan is made$"),
    "mixup": (nothing, None),
    "autocast": (
        nothing,
        r"the step is called under autocast to torch.bfloat16; the plan was made without autocast; another",
    ),
}
LOOPS: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], bool]] = {
    "own loop": (sgd, False),
    "own loop, AdamW": (adamw, False),
    "SGD in the step": (sgd, True),
    "AdamW in the step": (adamw, True),
    "Rprop after the step": (rprop, True),
}


def trained(
    name: str, change: Callable[..., None], make: Callable[..., Any], within: bool | None, **options: Any
) -> tuple[list[float], nn.Module, Any]:
    """Train five iterations; within: whether the step has the optimizer, None for eager PyTorch's loop."""
    module, loss_fn = network(), Smoothed()
    optimizer, step = make(module), None
    change(module, loss_fn, 0)
    if within is not None:
        step = planned(module, loss_fn, **options, **({"optimizer": optimizer} if within else {}))
    losses: list[float] = []
    for iteration in range(5):
        change(module, loss_fn, iteration)
        targets = CLASSES
        if name == "mixup" and iteration % 2:
            targets = functional.one_hot(CLASSES, 4).float() * 0.9 + 0.025
        torch.manual_seed(iteration)
        with AUTOCAST if name == "autocast" and iteration > 1 else nullcontext():
            loss = loss_fn(module(X), targets) if step is None else step(X, targets=targets)
        if not within:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, module, step


def assert_same(name: str, change: Callable[..., None], loop: str, **options: Any) -> Any:
    make, within = LOOPS[loop]
    losses, module, step = trained(name, change, make, within, **options)
    expected, baseline, _step = trained(name, change, make, None)
    assert losses == expected
    assert module.state_dict().keys() == baseline.state_dict().keys()
    for key, tensor in baseline.state_dict().items():
        assert torch.equal(module.state_dict()[key], tensor), key
    return step


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Rprop is not in the plan")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_changes_is_followed_by_another_plan(name: str, loop: str) -> None:
    change, line = FOLLOWED[name]
    if name in ("frozen", "unfrozen") and loop in ("SGD in the step", "AdamW in the step"):
        change = frozen_to_the_end
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = assert_same(name, change, loop)
    said = [str(each.message) for each in caught if "another plan" in str(each.message)]
    assert len(said) == (line is not None)
    assert len(step.plans) == (3 if name in ("dropout", "smoothing") else 2)
    for each in said:
        with pytest.raises(AssertionError, match=line):
            raise AssertionError(each)


@pytest.mark.scripts
def test_the_plan_used_least_recently_goes() -> None:
    with pytest.warns(
        UserWarning, match=r"more shapes, values or modes than max_plans=1: .* max_plans=2 keeps"
    ):
        assert len(assert_same("frozen", frozen, "own loop", max_plans=1).plans) == 1


@pytest.mark.scripts
@pytest.mark.parametrize("make", [sgd, adamw])
def test_what_is_frozen_keeps_its_states_in_moved_plans(make: Callable[..., Any]) -> None:
    loop = "SGD in the step" if make is sgd else "AdamW in the step"
    step = assert_same("frozen", frozen_to_the_end, loop, machine=LINKS, budget="75%")
    assert len(step.plans) == 2
    assert step.plans[0].budget <= step.plans[1].budget


def test_states_of_what_is_frozen_count_in_the_budget() -> None:
    module = network()
    optimizer = adamw(module)
    step = planned(module, Smoothed(), optimizer=optimizer)
    step(X, targets=CLASSES)
    module[0].requires_grad_(requires_grad=False)
    step(X, targets=CLASSES)
    left = sum(2 * parameter.nbytes for parameter in module[0].parameters())
    assert step.plans[1].budget - step.plans[0].budget >= left


@pytest.mark.scripts
def test_gradients_and_states_of_what_is_unfrozen_count_in_the_budget() -> None:
    module = network()
    module[0].requires_grad_(requires_grad=False)
    optimizer = adamw(module)
    step = planned(module, Smoothed())
    step(X, targets=CLASSES).backward()
    optimizer.step()
    module[0].requires_grad_(requires_grad=True)
    step(X, targets=CLASSES).backward()
    more = sum(3 * parameter.nbytes for parameter in module[0].parameters())
    assert step.plans[1].budget - step.plans[0].budget >= more


@pytest.mark.scripts
def test_planned_updates_do_not_go_on_after_a_freeze_and_the_call_that_helps_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, planning = list[float](), Planner._made_step
    monkeypatch.setattr(Planner, "_made_step", lambda *given: made.append(1) or planning(*given))
    for make in (sgd, adamw):
        made.clear()
        change = unfrozen if make is sgd else frozen
        with pytest.raises(
            memplan.MismatchError,
            match=r"more often than others, as after a layer was frozen: .* Plan anew without optimizer=",
        ):
            trained("frozen", change, make, within=True)
        assert len(made) == (1 if make is sgd else 2)  # none is made for what is refused
        assert_same("frozen", change, "own loop" if make is sgd else "own loop, AdamW")


def test_averages_of_frozen_weights_are_refused() -> None:
    module = network()
    step = planned(module, Smoothed(), optimizer=sgd(module), ema=0.9)
    step(X, targets=CLASSES)
    module[0].requires_grad_(requires_grad=False)
    with pytest.raises(
        memplan.MismatchError, match=r"averages of frozen ones would stop: plan anew, without ema="
    ):
        step(X, targets=CLASSES)
    module[0].requires_grad_(requires_grad=True)
    step(X, targets=CLASSES)


def test_a_layer_is_frozen_between_updates() -> None:
    module, baseline = network(), network()
    optimizer, other = sgd(module), sgd(baseline)
    step = planned(module, Smoothed(), optimizer=optimizer, gradient_accumulation_steps=2)
    for iteration in range(6):
        for model in (module, baseline):
            model[0].requires_grad_(iteration < 2)
        torch.manual_seed(iteration)
        (Smoothed()(baseline(X), CLASSES) / 2).backward()
        if iteration % 2:
            other.step()
            other.zero_grad()
        torch.manual_seed(iteration)
        step(X, targets=CLASSES)
    for one, same in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, same)
    step(X, targets=CLASSES)
    module[3].requires_grad_(requires_grad=False)
    with pytest.raises(memplan.MismatchError, match=r"between updates, after step.update\(\)"):
        step(X, targets=CLASSES)
    step.update()
    step(X, targets=CLASSES)


@pytest.mark.scripts
@pytest.mark.parametrize("options", [{}, {"optimizer": sgd}], ids=["own loop", "updates"])
def test_a_mode_that_was_forgotten_is_refused_with_the_call_that_helps(options: Any) -> None:
    for mode, line in (
        (
            True,
            r"^training is False; the plan is for True: call model.train\(\) before the step, or step.eval",
        ),
        (
            False,
            r"^training is True; the plan is for False: call model.eval\(\) before the step, or model.tr",
        ),
    ):
        module = network().train(mode)
        step = planned(module, Smoothed(), **{key: make(module) for key, make in options.items()})
        module.train(not mode)
        with pytest.raises(memplan.MismatchError, match=line):
            step(X, targets=CLASSES)
        eager = copy.deepcopy(module).eval()
        with torch.no_grad():
            assert torch.equal(step.evaluate(X, targets=CLASSES).loss, Smoothed()(eager(X), CLASSES))
        module.train(mode)
        step(X, targets=CLASSES)
        assert len(step.plans) == 1


@pytest.mark.scripts
def test_losses_that_are_added_do_not_warn() -> None:
    module = network().eval()
    baseline = copy.deepcopy(module)
    step = planned(module, Smoothed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            total = step(X, targets=CLASSES)
            total = total + step(X.flip(0), targets=CLASSES)
            total.backward()
            del total
            module.zero_grad()
        total = step(X, targets=CLASSES) + step(X.flip(0), targets=CLASSES)
        total.backward()
    (Smoothed()(baseline(X), CLASSES) + Smoothed()(baseline(X.flip(0)), CLASSES)).backward()
    for one, same in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.allclose(one.grad, same.grad)  # pyright: ignore


@pytest.mark.scripts
def test_a_loss_that_is_there_is_not_reported_until_it_is_gone() -> None:
    step = planned(network(), Smoothed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = step(X, targets=CLASSES)
        other = step(X, targets=CLASSES)
        other.backward()
        loss.backward()
        del loss, other
        kept = step(X, targets=CLASSES)
        kept.detach_()
    with pytest.warns(UserWarning, match="not asked for, and its loss is gone: call loss.backward"):
        step(X, targets=CLASSES)


def test_gradients_that_wait_and_exceed_the_budget_are_told_once_in_bytes() -> None:
    module = network()
    step = planned(module, Smoothed(), budget="100%", states=0)
    size = sum(parameter.nbytes for parameter in module.parameters())
    losses = [step(X, targets=CLASSES)]
    losses[0].backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [step(X, targets=CLASSES)]
    said = rf"is exceeded: losses of earlier steps wait for loss.backward\(\), with {size / 1024:.2f} KiB"
    with pytest.warns(UserWarning, match=said):
        losses.append(step(X, targets=CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses.append(step(X, targets=CLASSES))
        sum(losses).backward()  # pyright: ignore
