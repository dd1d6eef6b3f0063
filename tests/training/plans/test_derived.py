"""Plans for new shapes from those of other shapes: eager PyTorch's bits and measured bytes."""

from __future__ import annotations

import copy
import random
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.machine import Links, Machine
from memplan.profiling.compare.peaks import resident_bytes
from memplan.profiling.profile.profile import measure_program
from memplan.program.structure import structure
from memplan.training.plans import front_end
from torch import Tensor, nn
from torch.nn import functional

LENGTHS = random.Random(5).sample(range(3, 65), 40)


class Wide(nn.Module):
    """Layers that draw, and whose activations are more than the weights; a long batch takes one more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(4)
        )
        self.branch_from = 1000

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(torch.tanh(x) if len(x) > self.branch_from else x)


def batch(length: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(length)
    return torch.randn(length, 6), torch.randint(3, (length,))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows when a program is measured."""
    done: list[str] = []
    monkeypatch.setattr(
        front_end,
        "measure_program",
        lambda *given, **how: done.append("measured") or measure_program(*given, **how),
    )
    return done


def planned(module: nn.Module, length: int, **options: Any) -> Any:
    x, labels = batch(length)
    given: dict[str, Any] = {"budget": "60%", "solver": "rockmate", "time_limit": 0.5, "cache": False}
    return memplan.optimize(module, x, targets=labels, loss_fn=functional.cross_entropy, **(given | options))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("most", "updates"), [(2, True), (8, False)], ids=["updates", "gradients"])
def test_forty_lengths_train_as_eager_pytorch(most: int, updates: bool, measured: list[str]) -> None:
    module = Wide()
    baseline = copy.deepcopy(module)
    optimizer, theirs = sgd(module), sgd(baseline)
    step = planned(module, 64, max_plans=most, budget="75%", optimizer=optimizer if updates else None)
    for length in LENGTHS:
        x, labels = batch(length)
        torch.manual_seed(length)
        expected = functional.cross_entropy(baseline(x), labels)
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        torch.manual_seed(length)
        loss = step(x, targets=labels)
        assert torch.equal(loss.detach(), expected.detach())
        if not updates:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(step.plans) <= most
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(measured) == 1
    for length in LENGTHS[-most:]:  # their plans are there
        x, labels = batch(length)
        peak = live_peak(lambda: step(x, targets=labels).detach())  # noqa: B023
        assert peak.peak_bytes + resident_bytes(step.plans[0].program) <= step.plans[0].budget


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [3, 40, 63])
def test_bytes_are_those_that_are_measured(length: int) -> None:
    step = planned(Wide(), 64, budget="100%", optimizer=None)
    x, labels = batch(length)
    step(x, targets=labels).backward()
    derived, expected = step.plan.graph, planned(Wide(), length, budget="100%").plan.graph
    assert "measure" not in step.report().plans[0].setup
    assert derived.tensors.bytes.tolist() == expected.tensors.bytes.tolist()
    assert derived.operations.workspace.tolist() == expected.operations.workspace.tolist()


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [64, 20], ids=["fits", "does not fit"])
def test_a_branch_by_lengths_keeps_everything_or_is_measured(first: int, measured: list[str]) -> None:
    module = Wide()
    module.branch_from = 30
    alone: dict[str, Any] = {"states": 0, "gradients": "freed"}
    budget = planned(Wide(), 64, budget="75%", verify=False, **alone).plan.budget
    measured.clear()
    step = planned(module, first, budget=budget, **alone)
    lengths = (40, 20, 25, 31, 8) if first == 64 else (8, 25, 64, 40)
    for length in lengths:
        x, labels = batch(length)
        torch.manual_seed(0)
        loss = step(x, targets=labels)
        torch.manual_seed(0)
        assert torch.equal(loss.detach(), functional.cross_entropy(module(x), labels).detach())
        loss.backward()
        module.zero_grad()
        report = step.report().plans[0]
        # Two batches of each of both programs are compared, whatever their shapes.
        assert ("compared with eager PyTorch's" in " ".join(report.notes)) == (length in lengths[:4])
        assert ("measure" in report.setup) == (length == 64 and first == 20)
    assert len(measured) == (1 if first == 64 else 2)


@pytest.mark.scripts
def test_bytes_of_another_structure_are_those_that_are_measured() -> None:
    module = Wide()
    module.branch_from = 30
    step = planned(module, 64, budget="100%", verify=False)
    x, labels = batch(20)
    step(x, targets=labels).backward()
    derived, expected = step.plan.graph, planned(module, 20, budget="100%", verify=False).plan.graph
    assert "measure" not in step.report().plans[0].setup
    assert derived.tensors.bytes.tolist() == expected.tensors.bytes.tolist()
    assert derived.operations.workspace.tolist() == expected.operations.workspace.tolist()


def test_an_optimizers_step_that_does_not_fit_beside_a_longer_batch_is_refused() -> None:
    module = nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)

    def given(rows: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, 256), torch.randn(rows, 256)

    (x, y), options = given(1), {"loss_fn": functional.mse_loss, "time_limit": 0.5, "cache": False}
    step = memplan.optimize(module, x, targets=y, budget="100%", gradients="freed", **options)
    step(x, targets=y).backward()
    optimizer.step()
    optimizer.zero_grad()
    x, y = given(2)  # the whole budget is what the optimizer's step takes beside one row
    with pytest.raises(memplan.InfeasibleError, match="the step of AdamW needs"):
        step(x, targets=y)


@pytest.mark.scripts
def test_offloaded_weights_stay_offloaded_by_a_transferred_schedule(measured: list[str]) -> None:
    module = Wide()
    baseline = copy.deepcopy(module)
    own, theirs = sgd(module), sgd(baseline)
    machine = Machine(links=Links(1e9, 1e9))
    step = planned(module, 64, optimizer=own, machine=machine, solver="joint", budget="50%", max_plans=2)
    for length in (64, 50, 33, 60, 64, 33):
        x, labels = batch(length)
        torch.manual_seed(length)
        loss = step(x, targets=labels)
        torch.manual_seed(length)
        expected = functional.cross_entropy(baseline(x), labels)
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        assert torch.equal(loss, expected.detach())
    assert len(measured) == 1
    step.restore_to_device()
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.scripts
def test_verify_compares_each_plan() -> None:
    step = planned(Wide(), 64, budget="100%", verify=True)
    x, labels = batch(20)
    step(x, targets=labels).backward()
    assert "derive" in (setup := step.report().plans[0].setup)
    assert "compare" in setup


@pytest.mark.scripts
def test_structure_is_the_same_for_other_sizes_alone() -> None:
    def of(module: nn.Module, length: int) -> str:
        return structure(planned(module, length, budget="100%", verify=False).plans[0].program)

    module, other = Wide(), Wide()
    other.branch_from = 0
    assert of(module, 64) == of(module, 10)
    assert of(module, 64) != of(other, 64)
