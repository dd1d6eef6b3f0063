"""Small models whose smallest budget is near the baseline's own peak: the refusal says so, and what helps."""

from __future__ import annotations

import re
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.graphs.machine import Links, Machine
from memplan.runtime.run import cycle
from memplan.solvers.auto import auto
from memplan.solvers.problem import InfeasibleError, NotFoundError, Problem, SolverResult
from memplan.solvers.registry import kept
from memplan.steps import execute
from memplan.training.plans import infeasible
from simulated_device.device import SimulatedDevice
from torch import Tensor, nn
from torch.nn import functional

LABELS = torch.arange(16) % 10
OPTIONS: dict[str, Any] = {"solver": "rotor", "cache": False, "verify": False, "progress": False}


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.mean, self.spread = nn.Linear(196, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.widen = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 196), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.narrow(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        made = self.widen(mean + torch.randn_like(mean) * spread.exp())
        return functional.mse_loss(made, x) + (mean.square() + spread.exp() - spread).mean()


def dense() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    module = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return module, torch.randn(16, 196), {"targets": LABELS, "loss_fn": functional.cross_entropy}


def convolutional() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(200, 10))
    return module, torch.randn(16, 1, 14, 14), {"targets": LABELS, "loss_fn": functional.cross_entropy}


def variational() -> tuple[nn.Module, Tensor, dict[str, Any]]:
    return Autoencoder(), torch.rand(16, 196), {}


@pytest.mark.scripts
@pytest.mark.parametrize("make", [dense, convolutional, variational])
def test_a_refusal_says_the_share_and_what_goes_below(make: Any) -> None:
    """Less than the share that is named is refused; with optimizer= about as little suffices as is said."""
    torch.manual_seed(0)
    module, x, options = make()
    optimizer = torch.optim.AdamW(module.parameters())
    with pytest.raises(InfeasibleError) as refusal:
        memplan.optimize(module, x, budget="20%", **options, **OPTIONS)
    text = str(refusal.value)
    needed = re.search(r"(\d+)% of the baseline's peak \(([\d,]+) B", text)
    planned = re.search(r"less suffices with optimizer= from about ([\d,]+) B = [^(]* \((\d+)%\)", text)
    assert re.match(
        r"no schedule within [\d,]+ B[^:]*: \d+% of the baseline's peak \([^)]*\) is needed", text
    )
    assert needed is not None
    assert planned is not None
    assert "machine" not in text, "a CPU has no memory below its own"
    share, peak, least = (int(each.replace(",", "")) for each in (needed[1], needed[2], planned[1]))
    assert least < peak
    assert int(planned[2]) < share <= 100
    assert memplan.optimize(module, x, budget=f"{share}%", **options, **OPTIONS).plan.figures.peak <= peak
    with pytest.raises(InfeasibleError):
        memplan.optimize(module, x, budget=f"{share - 2}%", **options, **OPTIONS)
    trained = memplan.optimize(module, x, budget=least, optimizer=optimizer, **options, **OPTIONS)
    assert trained.plan.figures.peak <= least


BOTH = "optimizer= and machine="


@pytest.mark.parametrize(
    ("batch", "ways"),
    [
        pytest.param(16, {BOTH}, marks=pytest.mark.exhaustive),
        pytest.param(512, {"machine=", BOTH}, marks=pytest.mark.scripts),
    ],
)
def test_what_suffices_with_a_host_suffices_on_a_device_that_has_one(
    batch: int, ways: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways that the refusal names are followed: not where the optimizer's step needs more."""
    device = SimulatedDevice(seed=1)
    for room in (execute, cycle):
        monkeypatch.setattr(room, "device_of", lambda _name: device)
    monkeypatch.setattr(infeasible, "_has_host", lambda *_, **_named: True)
    module, _, options = dense()
    x, labels = torch.randn(batch, 196), torch.arange(batch) % 10
    optimizer = torch.optim.AdamW(module.parameters())
    options |= OPTIONS | {"solver": "auto", "time_limit": 1, "targets": labels}
    with pytest.raises(InfeasibleError) as refusal:
        memplan.optimize(module, x, budget="20%", **options)
    found = dict(re.findall(r"with ([^;,]*?machine=) from about ([\d,]+) B", str(refusal.value)))
    assert found.keys() == ways
    for way, text in found.items():
        size = int(text.replace(",", ""))
        given: dict[str, Any] = {"optimizer": optimizer} if "optimizer" in way else {}
        machine = Machine(links=Links(1e9, 1e9))
        step = memplan.optimize(module, x, budget=size, machine=machine, **options, **given)
        assert step.plan.device.total <= size
        loss = step(x, targets=labels)
        if not given:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        step.restore_to_device()
        device.synchronize()


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters)


@pytest.mark.scripts
@pytest.mark.parametrize("make", [unplanned.RMSprop, unplanned.Adadelta, lbfgs])
def test_what_this_optimizer_or_device_can_not_is_not_advised(make: Any) -> None:
    """States that no plan has, and a CPU: the line says what suffices, which then does, and nothing else."""
    module, x, options = dense()
    optimizer = make(module.parameters())
    with pytest.raises(InfeasibleError) as refusal:
        memplan.optimize(module, x, budget="20%", **options, **OPTIONS)
    text = str(refusal.value)
    assert "optimizer=" not in text
    assert "machine" not in text
    needed = re.search(r"(\d+)% of the baseline's peak", text)
    assert needed is not None
    assert memplan.optimize(module, x, budget=f"{needed[1]}%", **options, **OPTIONS)
    assert optimizer.param_groups


@pytest.mark.scripts
def test_the_schedule_of_a_named_budget_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A solver that finds nothing the second time: what it named is met, here and after a restart."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)]
    module, x = nn.Sequential(*layers), torch.randn(256, 32)
    given: dict[str, Any] = {"loss_fn": lambda y: y.square().mean(), "time_limit": 1, "states": 0}
    options = OPTIONS | {"solver": "auto", "cache": tmp_path} | given
    with pytest.raises(InfeasibleError) as refusal:
        memplan.optimize(module, x, budget="5%", **options)
    named = refusal.value.percent
    assert named is not None
    assert int(named[:-1]) < 100

    def nothing(problem: Problem, _options: object) -> SolverResult:
        raise NotFoundError("auto", problem.budget, 0)

    monkeypatch.setattr(auto, "solve", nothing)
    assert memplan.optimize(module, x, budget=named, **options).plan
    kept._here.clear()  # pyright: ignore[reportPrivateUsage]
    (file,) = (tmp_path / "refused").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert memplan.optimize(module, x, budget="99%", **options).plan, "by the file"
    with pytest.raises(NotFoundError):
        memplan.optimize(module, x, budget=f"{int(named[:-1]) - 2}%", **options)


@pytest.mark.scripts
def test_bytes_are_answered_in_bytes() -> None:
    module, x, options = dense()
    optimizer = torch.optim.AdamW(module.parameters())
    with pytest.raises(InfeasibleError, match="less suffices with optimizer= from about") as refusal:
        memplan.optimize(module, x, budget=5000, **options, **OPTIONS)
    assert "%" not in str(refusal.value)
    assert optimizer.param_groups
